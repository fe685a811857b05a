"""Combines CRC32s of consecutive byte ranges, written separately by several workers.

Algorithm: zlib's crc32_combine (crc32.c): GF(2) polynomials modulo the CRC32 polynomial.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 0x80000000


def combine_crc32(parts: Iterable[tuple[int, int]]) -> int:
    """Return the CRC32 of all bytes from the (CRC32, size) of each part, in order."""
    result = 0
    for crc, size in parts:
        result = _multiply(_shift_factor(size), result) ^ crc
    return result


@lru_cache(maxsize=1024)
def _shift_factor(size: int) -> int:
    """Return the factor for ``size`` more bytes: x to the power of 8 * ``size``."""
    result, power, left = _ONE, _power_of_x(3), size
    while left:
        if left & 1:
            result = _multiply(power, result)
        power = _multiply(power, power)
        left >>= 1
    return result


def _power_of_x(number: int) -> int:
    """Return x squared ``number`` times."""
    result = _ONE >> 1
    for _ in range(number):
        result = _multiply(result, result)
    return result


def _multiply(first: int, second: int) -> int:
    """Return the product of two polynomials."""
    product, bit = 0, _ONE
    while bit:
        if first & bit:
            product ^= second
        second = second >> 1 ^ _POLYNOMIAL if second & 1 else second >> 1
        bit >>= 1
    return product
