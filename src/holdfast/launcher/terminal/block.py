"""The last lines of a stream that moves the cursor between lines, such as nested progress bars.

Pure; imports nothing outside the standard library (:mod:`.relay`).
"""

from __future__ import annotations

import codecs
import re

#: Lines that the cursor may return to.
_MAX_ROWS = 100
_TOKEN = re.compile(
    r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\r\n\b]|[^\x1b\r\n\b]+"
)
#: The beginning of an escape sequence whose rest follows in the next bytes.
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*)?$")
_RESET = "\x1b[0m"

#: A character and the colours that precede it.
_Cell = tuple[str, str]


class ScreenBlock:
    """Keeps the lines that the stream may still change; returns those that it left for good.

    The cursor returns upwards by at most the distance that it did so far.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._rows: list[list[_Cell]] = [[]]
        self._style = ""
        self._up = self._reach = 0
        #: Position of the cursor in the block.
        self.row = self.column = 0

    @property
    def lines(self) -> list[bytes]:
        """Return the lines of the block, the last one without trailing empty ones."""
        lines = [_render(cells) for cells in self._rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def feed(self, data: bytes) -> list[bytes]:
        """Process output; return the lines that are complete."""
        text = self._rest + self._decoder.decode(data)
        rest = _INCOMPLETE.search(text)
        self._rest = text[rest.start() :] if rest else ""
        for token in _TOKEN.finditer(text[: len(text) - len(self._rest)]):
            if token[2]:
                self._control(token[2], token[1])
            elif token[0][0] != "\x1b":
                self._print(token[0])
        complete = max(self.row - min(self._reach, _MAX_ROWS), 0)
        lines = [_render(cells) for cells in self._rows[:complete]]
        del self._rows[:complete]
        self.row -= complete
        return lines

    def _print(self, text: str) -> None:
        if text == "\r":
            self.column = 0
        elif text == "\n":
            self._move(1)
            self.column, self._up = 0, 0
        elif text == "\b":
            self.column = max(self.column - 1, 0)
        else:
            cells = self._rows[self.row]
            cells += [("", " ")] * (self.column - len(cells))
            written = [(self._style, character) for character in text]
            cells[self.column : self.column + len(written)] = written
            self.column += len(written)

    def _control(self, name: str, parameters: str) -> None:
        number = int(parameters) if parameters.isdigit() else 0
        cells = self._rows[self.row]
        if name == "m":
            self._style = "" if parameters in ("", "0") else f"{self._style}\x1b[{parameters}m"
        elif name in "AF":
            self._up += max(number, 1)
            self._reach = max(self._reach, self._up)
            self._move(-max(number, 1))
        elif name in "BE":
            self._up = 0
            self._move(max(number, 1))
        elif name == "K":
            cells[self.column * (number == 0) :] = []
        elif name == "J":
            del cells[self.column * (number == 0) :], self._rows[self.row + 1 :]
        elif name in "CDG":
            step = max(number, 1)
            column = {"C": self.column + step, "D": self.column - step, "G": step - 1}[name]
            self.column = min(max(column, 0), 1000)
        if name in "EF":
            self.column = 0

    def _move(self, rows: int) -> None:
        self.row += max(min(rows, _MAX_ROWS), -_MAX_ROWS)
        if self.row < 0:  # to lines that were complete before the first movement
            self._rows[:0] = [[] for _ in range(-self.row)]
            self.row = 0
        self._rows += [[] for _ in range(self.row + 1 - len(self._rows))]


def _render(cells: list[_Cell]) -> bytes:
    parts, style = [], ""
    for own, character in cells:
        if own != style:
            parts.append((_RESET if style else "") + own)
            style = own
        parts.append(character)
    return ("".join(parts).rstrip() + (_RESET if style else "")).encode()
