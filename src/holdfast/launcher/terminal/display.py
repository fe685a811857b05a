"""What the terminal shows of several output streams: pure, bytes in and bytes out.

While one rank prints, its bytes pass unchanged. Once a second rank prints, each line gets a prefix,
and the newest incomplete line is the last line of the screen. If it is a progress bar, complete
lines of other streams are inserted above it; other text (a prompt) stays where it is. Several bars
of one stream, between which it moves the cursor, are treated as one incomplete line. Imports
nothing outside the standard library (:mod:`.relay`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.launcher.terminal.block import ScreenBlock

#: Another rank's incomplete line is shown if the shown one did not change for this long.
IDLE_S = 1.0
_MAX_PARTIAL = 1 << 16
#: Cursor movements between lines, which redraw several lines (nested bars, rich).
_MOVES = re.compile(rb"\x1b\[\d*[ABEF]")
#: Positions on the whole screen (curses).
_FULL_SCREEN = re.compile(rb"\x1b\[[\d;]*[Hf]|\x1b\[\?1049h|\x1bM")
#: Escape sequences except colours: they address the screen, not the line.
_CONTROLS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_COLOUR = re.compile(r"(\x1b\[[\d;:]*m)")
_ERASE = b"\r\x1b[K"


@dataclass(eq=False)
class Stream:
    """One output stream: stdout or stderr of ``rank``, or of the launcher (None)."""

    rank: int | None
    header: bytes = b""
    #: The incomplete last line, without the updates that it has overwritten.
    partial: bytes = b""
    #: Whether a carriage return updated it.
    is_bar: bool = False
    changed_at: float = 0.0
    #: Its last lines, if it moves the cursor between them; ``partial`` then holds all of them.
    block: ScreenBlock | None = None
    #: Whether it draws on the whole screen, so that its bytes pass unchanged.
    is_full_screen: bool = False


@dataclass
class Display:
    """Merges streams into the bytes for one terminal of ``columns``.

    ``prefix``: "auto" (once a second rank prints), "always" or "never".
    """

    prefix: str
    columns: int
    _streams: list[Stream] = field(default_factory=list)
    _first_rank: int | None = None
    _by_line: bool = False
    _live: Stream | None = None  # whose incomplete line the cursor is in
    _width: int = 0  # of what is shown of it
    _row: int = 0  # of the cursor in the lines that are shown of it

    def __post_init__(self) -> None:
        """Use prefixes from the start for "always"."""
        self._by_line = self.prefix == "always"

    def write(self, stream: Stream, data: bytes, now: float) -> bytes:
        """Return what the terminal gets for ``data`` of ``stream``; ``now`` in seconds."""
        if stream not in self._streams:
            self._streams.append(stream)
        out = self._note_rank(stream)
        stream.changed_at = now
        stream.is_full_screen |= stream.rank is not None and _FULL_SCREEN.search(data) is not None
        if stream.is_full_screen:
            if self._live is not stream:
                out += self._erase(stream) + stream.partial
            self._live, stream.partial = None, b""
            return out + data
        whole, appends = stream.partial + data, self._live is stream
        unchanged = not self._formats(stream) and (
            appends or (self._live is None and stream.block is None)
        )
        lines = _consume(stream, data)
        if unchanged:
            out += data if appends else whole
            if stream.partial:
                self._show(stream)
                return out
            self._live = self._newest()
            return out + self._draw()
        if lines is None and not self._may_show(stream, now):
            return out
        out += self._erase(stream)
        if lines is not None:
            out += self._format(stream, lines)
        if stream.partial and self._may_show(stream, now):
            self._live = stream
        elif self._live is None or not self._live.partial:
            self._live = self._newest()
        return out + self._draw()

    def refresh(self, now: float) -> bytes:
        """Show the newest incomplete line if the shown one is idle; called about once a second."""
        newest = self._newest()
        if newest is None or newest is self._live or not self._may_show(newest, now):
            return b""
        out = self._erase(newest)
        self._live = newest
        return out + self._draw()

    def close(self, stream: Stream) -> bytes:
        """Return what completes the last line of a stream that ended."""
        if stream in self._streams:
            self._streams.remove(stream)
        if not stream.partial:
            return b""
        if self._live is stream and not stream.is_bar:
            out = b"\n"
        else:
            out = self._erase(stream) + self._format(stream, stream.partial.rstrip(b"\r"))
        stream.partial, stream.block = b"", None
        if self._live in (None, stream):
            self._live = self._newest()
        return out + self._draw()

    def _note_rank(self, stream: Stream) -> bytes:
        """Switch to prefixes if a second rank prints; return what that changes on the screen."""
        if stream.rank is None or self.prefix != "auto" or self._by_line:
            return b""
        if self._first_rank is None:
            self._first_rank = stream.rank
        if self._first_rank == stream.rank:
            return b""
        out = self._erase(self._live)
        self._by_line = True
        return out + self._draw()

    def _formats(self, stream: Stream) -> bool:
        return self._by_line or stream.rank is None

    def _may_show(self, stream: Stream, now: float) -> bool:
        """Return whether the incomplete line of a stream may replace the shown one."""
        live = self._live
        return (
            live is None
            or not live.partial
            or stream.rank == live.rank
            or now - live.changed_at >= IDLE_S
        )

    def _newest(self) -> Stream | None:
        incomplete = [each for each in self._streams if each.partial]
        return max(incomplete, key=lambda each: each.changed_at, default=None)

    def _show(self, stream: Stream | None) -> None:
        self._live = stream
        self._width = max(map(len, _text(stream.partial).split("\n"))) if stream else 0
        self._row = stream.block.row if stream and stream.block else 0

    def _erase(self, writer: Stream | None) -> bytes:
        """Return what removes the shown incomplete line before ``writer`` is shown.

        Text of another stream that is no progress bar stays, and a line that is too long for it.
        """
        live = self._live
        if live is None:
            return b""
        if writer is not None and writer is not live and not live.is_bar:
            self._live, live.partial = None, b""
            return b"" if live.rank == writer.rank and not self._by_line else b"\n"
        if self._width >= self.columns:
            return b"\n"
        if live.block is None:
            return _ERASE
        return (b"\x1b[%dA" % self._row if self._row else b"") + b"\r\x1b[J"

    def _draw(self) -> bytes:
        live = self._live
        if live is None:
            return b""
        if live.block is not None:
            return self._draw_block(live, live.block)
        if not self._formats(live):
            self._show(live)
            return live.partial
        drawn = _truncate(live.header + _CONTROLS.sub(b"", live.partial), self.columns - 1)
        self._width = len(_text(drawn))
        return drawn

    def _draw_block(self, live: Stream, block: ScreenBlock) -> bytes:
        """Return the lines of a block, with the cursor where its stream expects it."""
        lines = block.lines
        lines += [b""] * (block.row + 1 - len(lines))
        header = live.header if self._formats(live) else b""
        self._width, self._row = 0, block.row
        up = len(lines) - 1 - block.row
        column = block.column + len(_text(header))
        return (
            b"\n".join(_truncate(header + line, self.columns - 1) for line in lines)
            + (b"\x1b[%dA" % up if up else b"")
            + (b"\r\x1b[%dC" % column if column else b"\r")
        )

    def _format(self, stream: Stream, lines: bytes) -> bytes:
        """Return complete lines as shown: with prefix, and only the last update of each."""
        if not self._formats(stream):
            return lines + b"\n"
        return b"".join(_format_line(stream.header, line) for line in lines.split(b"\n"))


def _consume(stream: Stream, data: bytes) -> bytes | None:
    """Add output to the incomplete line of a stream; return the complete ones, if any."""
    whole = stream.partial + data
    if stream.block is None and stream.rank is not None and _MOVES.search(whole):
        stream.block, data = ScreenBlock(), whole
    if stream.block is not None:
        complete = stream.block.feed(data)
        stream.partial, stream.is_bar = b"\n".join(stream.block.lines), True
        return b"\n".join(complete) if complete else None
    lines, newline, rest = whole.rpartition(b"\n")
    stream.is_bar = b"\r" in rest or (stream.is_bar and not newline)
    stream.partial = _collapse(rest)
    return lines if newline else None


def _format_line(header: bytes, line: bytes) -> bytes:
    shown = _CONTROLS.sub(b"", _collapse(line.rstrip(b"\r")))
    return header + shown + (b"\x1b[0m\n" if b"\x1b[" in shown else b"\n")


def _collapse(line: bytes) -> bytes:
    """Return what a line shows after its carriage returns, and the last of these if it ends so."""
    *_, last = [each for each in line.split(b"\r") if each] or [b""]
    if b"\r" in line and not last.strip():
        return b""
    return (last + b"\r" if line.endswith(b"\r") else last)[-_MAX_PARTIAL:]


def _text(line: bytes) -> str:
    """Return the visible characters of a line."""
    return _COLOUR.sub("", _CONTROLS.sub(b"", line).decode("utf-8", "ignore")).strip("\r")


def _truncate(line: bytes, columns: int) -> bytes:
    """Return the first ``columns`` visible characters of a line with its colours."""
    parts, left = [], columns
    for part in _COLOUR.split(line.decode("utf-8", "ignore").strip("\r")):
        if part.startswith("\x1b["):
            parts.append(part)
        else:
            parts.append(part[:left])
            left -= len(parts[-1])
    return ("".join(parts) + ("\x1b[0m" if len(parts) > 1 else "")).encode()
