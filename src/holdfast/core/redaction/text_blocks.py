"""Split a stream of text into blocks between unrelated lines, in constant memory.

The split depends only on the text, not on how many bytes a read returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

#: A block ends with the first line end after this many bytes.
BLOCK_BYTES = 256 << 10
MAX_LINE_BYTES = 1 << 20
_READ_BYTES = 256 << 10
_LINE_END = re.compile(rb"[\r\n]+")
#: Matches a line whose secret may be on the next line.
_OPEN = re.compile(rb"(?i)name|login|passw|secret|token|key|machine|[:=,\\]\s*$")
#: Maximum number of such lines in a row that keep a block open.
_MAX_OPEN_LINES = 64
_BREAK = re.compile(rb"[\s,;&|]")


def read_blocks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the text of ``source`` as whole lines, without zero bytes (holes of a truncated file).

    A mark replaces the rest of a line that is longer than MAX_LINE_BYTES.
    """
    held, skipping = b"", False
    while data := source.read(_READ_BYTES):
        held += data.replace(b"\0", b"")
        while True:
            if skipping:
                end = _LINE_END.search(held)
                held, skipping = (held[end.start() :], False) if end else (b"", True)
            cut, skips_rest = _find_cut(held)
            if not cut:
                break
            mark = b" <left out: the rest of a very long line>" if skips_rest else b""
            yield held[:cut] + mark
            held, skipping = held[cut:], skips_rest
    if held:
        yield held


def announces(line: bytes) -> bool:
    """Return whether the secret that a line announces may be on the next line."""
    return _OPEN.search(line) is not None


def _find_cut(held: bytes) -> tuple[int, bool]:
    """Return the end of the block (0: read more), and whether to skip the rest of its line."""
    end = 0
    for number, match in enumerate(
        _LINE_END.finditer(held, BLOCK_BYTES, BLOCK_BYTES + MAX_LINE_BYTES)
    ):
        if match.end() == len(held):
            break  # the line end may continue in the next read
        end = match.end()
        before = held[max(end - 4096, 0) : match.start()]
        if number >= _MAX_OPEN_LINES or not announces(re.split(rb"[\r\n]", before)[-1]):
            return end, False
    if len(held) <= BLOCK_BYTES + MAX_LINE_BYTES:
        return 0, False
    if end:
        return end, False
    breaks = [match.start() for match in _BREAK.finditer(held, 1, BLOCK_BYTES)]
    # Without a break, more than one byte could be the half of a secret.
    return (breaks[-1] if breaks else 1), True
