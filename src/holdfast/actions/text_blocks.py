"""Cuts a stream of text into blocks where nothing that belongs together is torn apart, in constant memory.

Where it cuts depends on the text alone, never on how many bytes a read gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

#: A block ends with the first line end after so many bytes; a line may have so many.
BLOCK_BYTES = 256 << 10
LONGEST_LINE = 1 << 20
_READ_BYTES = 256 << 10
_LINE_END = re.compile(rb"[\r\n]+")
#: A line that may announce a secret on the next one.
_OPEN = re.compile(rb"(?i)name|login|passw|secret|token|key|machine|[:=,\\]\s*$")
#: How many such lines in a row keep a block open.
_MOST_OPEN = 64
_BREAK = re.compile(rb"[\s,;&|]")


def blocks(source: BinaryIO) -> Iterator[bytes]:
    """The text of ``source``: whole lines, without zero bytes (holes of a file that was cut).

    The rest of a line longer than LONGEST_LINE is left out, which is said in its place.
    """
    held, skipping = b"", False
    for piece in _pieces(source):
        held += piece
        while True:
            if skipping:
                end = _LINE_END.search(held)
                held, skipping = (held[end.start() :], False) if end else (b"", True)
            cut, skipping_next = _cut(held)
            if not cut:
                break
            yield held[:cut] + (b" <left out: the rest of a very long line>" if skipping_next else b"")
            held, skipping = held[cut:], skipping_next
    if held:
        yield held


def announces(line: bytes) -> bool:
    """Whether a line may announce a secret that stands on the next one."""
    return _OPEN.search(line) is not None


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(_READ_BYTES):
        yield piece.replace(b"\0", b"")


def _cut(held: bytes) -> tuple[int, bool]:
    """Where the block ends, 0 where more must be read first; and whether the rest of its line is left out."""
    end = 0
    for number, match in enumerate(_LINE_END.finditer(held, BLOCK_BYTES, BLOCK_BYTES + LONGEST_LINE)):
        if match.end() == len(held):
            break  # the line end may go on in the next piece
        end = match.end()
        before = held[max(end - 4096, 0) : match.start()]
        if number >= _MOST_OPEN or not announces(re.split(rb"[\r\n]", before)[-1]):
            return end, False
    if len(held) <= BLOCK_BYTES + LONGEST_LINE:
        return 0, False
    if end:
        return end, False
    breaks = [match.start() for match in _BREAK.finditer(held, 1, BLOCK_BYTES)]
    return (breaks[-1] if breaks else 1), True  # without a break, what is kept may be the half of a secret
