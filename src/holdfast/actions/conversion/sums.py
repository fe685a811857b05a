"""CRC32 of two runs of bytes from that of each: what workers that write a record's stretches apart put together.

The arithmetic is that of zlib's crc32_combine (crc32.c): polynomials over two elements, modulo that of CRC32.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 0x80000000


def combined(parts: Iterable[tuple[int, int]]) -> int:
    """The CRC32 of all bytes, from the CRC32 and the number of bytes of each part, in order."""
    found = 0
    for crc, size in parts:
        found = _times(_shift(size), found) ^ crc
    return found


@lru_cache(maxsize=1024)
def _shift(size: int) -> int:
    """What ``size`` more bytes multiply a CRC32 by: x to the power of 8 * ``size``."""
    found, power, left = _ONE, _square_times(3), size
    while left:
        if left & 1:
            found = _times(power, found)
        power = _times(power, power)
        left >>= 1
    return found


def _square_times(number: int) -> int:
    """x, squared so many times."""
    found = _ONE >> 1
    for _ in range(number):
        found = _times(found, found)
    return found


def _times(one: int, two: int) -> int:
    """The product of two polynomials."""
    found, bit = 0, _ONE
    while bit:
        if one & bit:
            found ^= two
        two = two >> 1 ^ _POLYNOMIAL if two & 1 else two >> 1
        bit >>= 1
    return found
