"""Counts NaN, infinities, huge values and zero pages in a run of numbers at memory speed.

Without the sign bit, float bit patterns sort by magnitude, and NaN and infinities sort above all
finite values (IEEE 754). So the maximum of a block tells whether it is finite, whatever the dtype;
only other blocks are counted element by element.

A page is 4,096 bytes from a multiple of 4,096 in the file: what a file system loses at once.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np

from holdfast.ckpt.contents import ITEMSIZE
from holdfast.ckpt.tensor_blocks import numpy_dtype

#: Elements per chunk: a chunk and its copy fit into the CPU cache.
_CHUNK = 1 << 16
PAGE_BYTES = 4096
#: Zero pages recorded per run; elements per call of ``update`` that enter the mean square.
_MAX_ZERO_PAGES, _SAMPLED = 64, 1 << 13
#: A weight or moment above this is damaged or diverged; fp16 ends at 65,504.
_HUGE = {"float64": 1e12, "float32": 1e12, "bfloat16": 1e12, "float16": 16384.0}
Bits = np.ndarray[Any, np.dtype[Any]]


class _FloatBits(msgspec.Struct, frozen=True):
    """Bit pattern of infinity without the sign; above it is NaN.

    ``finite``: the pattern itself is a finite value.
    """

    unsigned: str
    infinity: int
    finite: bool = False


_FLOAT_BITS = {
    "float64": _FloatBits("u8", 0x7FF0000000000000),
    "float32": _FloatBits("u4", 0x7F800000),
    "float16": _FloatBits("u2", 0x7C00),
    "bfloat16": _FloatBits("u2", 0x7F80),
    "complex64": _FloatBits("u4", 0x7F800000),
    "complex128": _FloatBits("u8", 0x7FF0000000000000),
    "float8_e5m2": _FloatBits("u1", 0x7C),
    "float8_e4m3fn": _FloatBits("u1", 0x7E, finite=True),
}
#: Dtypes with exactly one NaN pattern and no infinity.
_ONE_NAN = {"float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF}


class ValueCounts(msgspec.Struct):
    """Counts over ``elements`` values. ``other``: at least one is finite and not zero.

    ``huge`` values are finite, but larger than any weight. ``zero_pages`` are the first pages of
    zeros, as offsets in the file. ``squares`` is the sum over ``sampled`` finite values.
    """

    elements: int = 0
    nan: int = 0
    inf: int = 0
    other: bool = False
    huge: int = 0
    zero_pages: tuple[int, ...] = ()
    squares: float = 0.0
    sampled: int = 0

    @property
    def all_zero(self) -> bool:
        """Return whether there are elements and all are zero."""
        return bool(self.elements) and not (self.other or self.nan or self.inf)

    def add(self, more: ValueCounts) -> None:
        """Add the counts of another part of the same tensor."""
        self.elements += more.elements
        self.nan += more.nan
        self.inf += more.inf
        self.other = self.other or more.other
        self.huge += more.huge


_thread_local = threading.local()


def _scratch_buffer(dtype: np.dtype[Any]) -> Bits:
    """Return this thread's buffer; one per counter would be costly for 100,000 tensors."""
    buffers: dict[str, Bits] = _thread_local.__dict__.setdefault("buffers", {})
    if dtype.str not in buffers:
        buffers[dtype.str] = np.empty(_CHUNK, dtype)
    return buffers[dtype.str]


class ValueCounter:
    """Counts a run of values whose bytes arrive in chunks of any size, from byte ``start`` on."""

    def __init__(self, dtype: str, start: int = 0) -> None:
        self.counts = ValueCounts()
        self._dtype = dtype
        self._form = _FLOAT_BITS.get(dtype)
        itemsize = np.dtype(self._form.unsigned).itemsize if self._form else ITEMSIZE.get(dtype, 1)
        self._unsigned = np.dtype(f"u{itemsize}")
        self._magnitude = self._unsigned.type((1 << 8 * itemsize - 1) - 1)
        self._huge = self._unsigned.type(
            np.array(_HUGE[dtype], numpy_dtype(dtype)).view(self._unsigned)
            if dtype in _HUGE
            else self._magnitude
        )
        self._at = start
        self._rest = b""

    def update(self, data: memoryview) -> None:
        """Consume the next bytes; a chunk may end within an element."""
        size = self._unsigned.itemsize
        if self._rest:
            needed = min(size - len(self._rest), len(data))
            self._rest += bytes(data[:needed])
            data = data[needed:]
            if len(self._rest) == size:
                self._count(np.frombuffer(self._rest, self._unsigned))
                self._rest = b""
        complete = len(data) // size * size
        self._rest += bytes(data[complete:])
        if complete:
            self._count(np.frombuffer(data[:complete], self._unsigned))

    def _count(self, bits: Bits) -> None:
        per_element = 2 if self._dtype.startswith("complex") else 1
        self.counts.elements += len(bits) // per_element
        if self._dtype in _HUGE:
            self._sample(bits[:_SAMPLED])
        # The first chunk ends at a page, so that all others consist of pages.
        first = -self._at % PAGE_BYTES // bits.itemsize
        for at in (*([0] if first else []), *range(first, len(bits), _CHUNK)):
            block = bits[at : first if at < first else at + _CHUNK]
            if self._form is not None:
                self._count_floats(block, self._form)
            else:
                nan = (
                    int(np.count_nonzero(block == _ONE_NAN[self._dtype]))
                    if self._dtype in _ONE_NAN
                    else 0
                )
                self.counts.nan += nan
                self.counts.other = self.counts.other or nan < int(np.count_nonzero(block))
            self._at += block.nbytes

    def _sample(self, bits: Bits) -> None:
        """Add the first values of each call to the mean square."""
        plain = bits[(bits & self._magnitude) <= self._huge]
        values = plain.view(numpy_dtype(self._dtype)).astype(np.float64)
        self.counts.squares += float(np.dot(values, values))
        self.counts.sampled += len(values)

    def _count_floats(self, block: Bits, form: _FloatBits) -> None:
        unsigned = np.bitwise_and(
            block, self._magnitude, out=_scratch_buffer(self._unsigned)[: len(block)]
        )
        self._find_zero_pages(block)
        peak = int(unsigned.max())
        if peak < form.infinity or (peak == form.infinity and form.finite):
            self.counts.other = self.counts.other or peak > 0
            if peak > self._huge:
                self.counts.huge += int(np.count_nonzero(unsigned > self._huge))
            return
        self.counts.nan += int(np.count_nonzero(unsigned > form.infinity))
        self.counts.inf += 0 if form.finite else int(np.count_nonzero(unsigned == form.infinity))
        self.counts.huge += int(
            np.count_nonzero((unsigned > self._huge) & (unsigned < form.infinity))
        )
        finite = unsigned[unsigned <= form.infinity if form.finite else unsigned < form.infinity]
        self.counts.other = self.counts.other or bool(finite.any())

    def _find_zero_pages(self, bits: Bits) -> None:
        """Record pages of zero bytes; negative zeros, as of pruned weights, are no lost pages."""
        per_page = PAGE_BYTES // bits.itemsize
        pages = len(bits) // per_page if self._at % PAGE_BYTES == 0 else 0
        left = _MAX_ZERO_PAGES - len(self.counts.zero_pages)
        first = bits[: pages * per_page : per_page]  # most pages start with another value
        if left and not first.all():
            candidates = np.flatnonzero(first == 0)
            peaks = bits[: pages * per_page].reshape(pages, per_page)[candidates].max(axis=1)
            zeros = candidates[peaks == 0][:left]
            self.counts.zero_pages += tuple(self._at + PAGE_BYTES * int(page) for page in zeros)
