r"""The lines of a log as a program wrote them, not as the file has them.

A log without a transport (``diagnose/transports``) passes in blocks, so that reading it costs
nothing per line. In every log, codes of a terminal are removed, and a traceback is split that was
printed with ``\n`` in place of line feeds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from holdfast.diagnose.evidence.streams import ReadableStream
from holdfast.diagnose.transports import (
    MAX_HELD_BYTES,
    CarriedLine,
    TransportDecoder,
    numbered_lines,
)
from holdfast.diagnose.transports.glued import ESCAPED_TRACEBACK, LiteralLineFeeds
from holdfast.diagnose.transports.recognition import decode, recognize

#: A transport is recognized in this much of a log's beginning.
FIRST_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 19
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[@-_])")
#: Origins of this many lines before the last requested one are kept.
_KEPT_ORIGINS, _MAX_ORIGINS = 1 << 10, 1 << 15


def is_plain(log: bytes) -> bool:
    """Return whether the lines of this small log are as a program wrote them."""
    return not (b"\x1b" in log or ESCAPED_TRACEBACK in log or recognize(log))


class LogTransport:
    """The transport of one log, which may grow: each stream continues the one before."""

    def __init__(self) -> None:
        self._decoders: Sequence[TransportDecoder] = ()
        self._first = b""
        self._may_be_recognized = True
        self.lines = 0

    def open(self, stream: ReadableStream) -> CarriedLog:
        """Return the lines in ``stream``."""
        return CarriedLog(stream, self)

    @property
    def is_recognized(self) -> bool:
        """Return whether the lines are carried in a form that was recognized."""
        return bool(self._decoders)

    def decode(self, block: bytes, *, flush: bool) -> Iterator[CarriedLine] | None:
        """Yield the lines in ``block``; None if they are those of the file."""
        if block and self._may_be_recognized:
            self._recognize(block)
        decoders = self._decoders
        if ESCAPED_TRACEBACK in block:
            decoders = (*decoders, LiteralLineFeeds())
        if not decoders:
            return None
        return decode(decoders, numbered_lines(block, self.lines), flush=flush)

    def _recognize(self, block: bytes) -> None:
        first = self._first + block[: FIRST_BYTES - len(self._first)]
        is_cut = len(first) == FIRST_BYTES
        self._decoders = recognize(first[: first.rfind(b"\n") + 1] or first if is_cut else first)
        self._may_be_recognized = not (is_cut or self._decoders)
        self._first = first if self._may_be_recognized else b""


class CarriedLog:
    """A stream of the lines of one log, and where each of them comes from."""

    def __init__(self, stream: ReadableStream, transport: LogTransport) -> None:
        self._stream, self._transport = stream, transport
        self._rest = self._ready = b""
        self._at_end = False
        self._read_lines = 0
        self._begins: list[int] = [1]
        self._origins: list[CarriedLine | int] = [transport.lines + 1]
        self.lines = self.bytes = 0

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes of the lines, none at the end."""
        while not self._ready and not self._at_end:
            self._ready = self._next_block()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def origin(self, number: int) -> CarriedLine:
        """Return where line ``number`` of this stream comes from; numbers must not decrease."""
        at = bisect_right(self._begins, number) - 1
        origin, begin = self._origins[at], self._begins[at]
        if at > _MAX_ORIGINS:
            del self._origins[: at - _KEPT_ORIGINS], self._begins[: at - _KEPT_ORIGINS]
        return (
            origin if isinstance(origin, CarriedLine) else CarriedLine(origin + number - begin, b"")
        )

    def _next_block(self) -> bytes:
        """Return the lines that the next bytes of the file contain."""
        rest = self._rest
        chunk = self._stream.read(max(_CHUNK_BYTES - len(rest), _CHUNK_BYTES // 2)) or b""
        self._at_end = not chunk
        if not (chunk or rest or self._transport.is_recognized):
            return b""
        self.bytes += len(chunk)
        is_held = len(rest) + len(chunk) <= MAX_HELD_BYTES
        end = chunk.rfind(b"\n") + 1 if is_held else len(chunk)
        if not end and chunk:
            self._rest = rest + chunk
            return b""
        self._rest = chunk[end:]
        return self._decode(b"".join((rest, memoryview(chunk)[:end])) if rest else chunk[:end])

    def _decode(self, block: bytes) -> bytes:
        text = _ESCAPES.sub(b"", block) if b"\x1b" in block else block
        lines = self._transport.decode(text, flush=self._at_end)
        if lines is None:
            self._add_origin(self._transport.lines + 1)
            result = text
        else:
            result = self._join(lines)
        read = result.count(b"\n")
        count = read if result is block else block.count(b"\n")
        count += self._at_end and bool(block) and not block.endswith(b"\n")
        self.lines += count
        self._transport.lines += count
        self._read_lines += read
        return result

    def _join(self, lines: Iterator[CarriedLine]) -> bytes:
        parts = []
        for number, line in enumerate(lines, self._read_lines + 1):
            self._begins.append(number)
            self._origins.append(line._replace(text=b""))
            parts.append(line.text if line.text.endswith(b"\n") else line.text + b"\n")
        result = b"".join(parts)
        return _ESCAPES.sub(b"", result) if b"\x1b" in result else result

    def _add_origin(self, number: int) -> None:
        """Record that the next line is line ``number`` of the file, unless that is clear."""
        last, begin = self._origins[-1], self._begins[-1]
        if isinstance(last, CarriedLine) or last + self._read_lines + 1 - begin != number:
            self._begins.append(self._read_lines + 1)
            self._origins.append(number)
