"""What the terminal shows of several output streams: pure, bytes in and bytes out.

While one rank prints, its bytes pass unchanged. Once a second rank prints, each line gets a prefix,
and the newest incomplete line is the last line of the screen. If it is a progress bar, complete
lines of other streams are inserted above it; other text (a prompt) stays where it is. Imports
nothing outside the standard library (:mod:`.relay`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Another rank's incomplete line is shown if the shown one did not change for this long.
IDLE_S = 1.0
_MAX_PARTIAL = 1 << 16
#: Cursor movements between lines, which redraw several lines (nested bars, rich, curses).
_MOVES = re.compile(rb"\x1b\[[\d;]*[ABEFHf]|\x1b\[\?1049h|\x1bM")
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
    #: Whether it moves the cursor between lines, so that it cannot be shown line by line.
    moves_cursor: bool = False


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

    def __post_init__(self) -> None:
        """Use prefixes from the start for "always"."""
        self._by_line = self.prefix == "always"

    def write(self, stream: Stream, data: bytes, now: float) -> bytes:
        """Return what the terminal gets for ``data`` of ``stream``; ``now`` in seconds."""
        if stream not in self._streams:
            self._streams.append(stream)
        out = self._note_rank(stream)
        stream.changed_at = now
        stream.moves_cursor |= stream.rank is not None and _MOVES.search(data) is not None
        if stream.moves_cursor:
            if self._live is not stream:
                out += self._erase(stream) + stream.partial
            self._live, stream.partial = None, b""
            return out + data
        whole = stream.partial + data
        lines, newline, rest = whole.rpartition(b"\n")
        unchanged = not self._formats(stream) and self._live in (None, stream)
        appends = self._live is stream
        stream.is_bar = b"\r" in rest or (stream.is_bar and not newline)
        stream.partial = _collapse(rest)
        if unchanged:
            out += data if appends else whole
            if stream.partial:
                self._show(stream)
                return out
            self._live = self._newest()
            return out + self._draw()
        if not newline and not self._may_show(stream, now):
            return out
        out += self._erase(stream)
        if newline:
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
        stream.partial = b""
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
        self._width = len(_text(stream.partial)) if stream else 0

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
        return _ERASE if self._width < self.columns else b"\n"

    def _draw(self) -> bytes:
        live = self._live
        if live is None:
            return b""
        if not self._formats(live):
            self._show(live)
            return live.partial
        drawn = _truncate(live.header + _CONTROLS.sub(b"", live.partial), self.columns - 1)
        self._width = len(_text(drawn))
        return drawn

    def _format(self, stream: Stream, lines: bytes) -> bytes:
        """Return complete lines as shown: with prefix, and only the last update of each."""
        if not self._formats(stream):
            return lines + b"\n"
        return b"".join(_format_line(stream.header, line) for line in lines.split(b"\n"))


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
