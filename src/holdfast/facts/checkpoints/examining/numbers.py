"""What is in a run of numbers besides numbers: NaN, infinities, nothing but zeros; at the speed of memory.

The bits of a float without its sign grow with its size, and those of NaN and the infinities stand above all others
(IEEE 754). So one look at the largest of them tells that a block is fine, whatever its dtype; only one that is not is
counted out.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np

from holdfast.facts.checkpoints.contents import ITEMSIZE

#: Elements that are looked at together: they and their copy stay in the processor's cache.
_AT_ONCE = 1 << 16
Bits = np.ndarray[Any, np.dtype[Any]]


class _Form(msgspec.Struct, frozen=True):
    """How a dtype says infinity: bits without the sign. What is above is NaN; ``finite``: this value is one, too."""

    unsigned: str
    infinity: int
    finite: bool = False


_FORMS = {
    "float64": _Form("u8", 0x7FF0000000000000), "float32": _Form("u4", 0x7F800000), "float16": _Form("u2", 0x7C00),
    "bfloat16": _Form("u2", 0x7F80), "complex64": _Form("u4", 0x7F800000),
    "complex128": _Form("u8", 0x7FF0000000000000),
    "float8_e5m2": _Form("u1", 0x7C), "float8_e4m3fn": _Form("u1", 0x7E, finite=True),
}  # fmt: skip
#: Dtypes in which one pattern alone is NaN, and nothing is infinite.
_ONE_NAN = {"float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF}


class Counts(msgspec.Struct):
    """What was found in ``elements`` numbers. ``other`` says that one of them is finite and not zero."""

    elements: int = 0
    nan: int = 0
    inf: int = 0
    other: bool = False

    @property
    def all_zero(self) -> bool:
        """There are some, and each is zero."""
        return bool(self.elements) and not (self.other or self.nan or self.inf)

    def add(self, more: Counts) -> None:
        """Take the numbers of another part of the same tensor in."""
        self.elements += more.elements
        self.nan += more.nan
        self.inf += more.inf
        self.other = self.other or more.other


_own = threading.local()


def _room(dtype: np.dtype[Any]) -> Bits:
    """Where a thread keeps the bits that it looks at; a counter of its own for each of 100,000 tensors would cost."""
    rooms: dict[str, Bits] = _own.__dict__.setdefault("rooms", {})
    if dtype.str not in rooms:
        rooms[dtype.str] = np.empty(_AT_ONCE, dtype)
    return rooms[dtype.str]


class Counter:
    """Counts a run of numbers whose bytes come in any portions."""

    def __init__(self, dtype: str) -> None:
        self.counts = Counts()
        self._dtype = dtype
        self._form = _FORMS.get(dtype)
        itemsize = np.dtype(self._form.unsigned).itemsize if self._form else ITEMSIZE.get(dtype, 1)
        self._unsigned = np.dtype(f"u{itemsize}")
        self._magnitude = self._unsigned.type((1 << 8 * itemsize - 1) - 1)
        self._rest = b""

    def update(self, data: memoryview) -> None:
        """The next bytes; an element may be cut by the end of a portion."""
        size = self._unsigned.itemsize
        if self._rest:
            needed = min(size - len(self._rest), len(data))
            self._rest += bytes(data[:needed])
            data = data[needed:]
            if len(self._rest) == size:
                self._look(np.frombuffer(self._rest, self._unsigned))
                self._rest = b""
        whole = len(data) // size * size
        self._rest += bytes(data[whole:])
        if whole:
            self._look(np.frombuffer(data[:whole], self._unsigned))

    def _look(self, bits: Bits) -> None:
        per_element = 2 if self._dtype.startswith("complex") else 1
        self.counts.elements += len(bits) // per_element
        for at in range(0, len(bits), _AT_ONCE):
            block = bits[at : at + _AT_ONCE]
            if self._form is not None:
                self._look_at_floats(block, self._form)
            else:
                nan = int(np.count_nonzero(block == _ONE_NAN[self._dtype])) if self._dtype in _ONE_NAN else 0
                self.counts.nan += nan
                self.counts.other = self.counts.other or nan < int(np.count_nonzero(block))

    def _look_at_floats(self, block: Bits, form: _Form) -> None:
        unsigned = np.bitwise_and(block, self._magnitude, out=_room(self._unsigned)[: len(block)])
        peak = int(unsigned.max())
        if peak < form.infinity or (peak == form.infinity and form.finite):
            self.counts.other = self.counts.other or peak > 0
            return
        self.counts.nan += int(np.count_nonzero(unsigned > form.infinity))
        self.counts.inf += 0 if form.finite else int(np.count_nonzero(unsigned == form.infinity))
        finite = unsigned[unsigned <= form.infinity if form.finite else unsigned < form.infinity]
        self.counts.other = self.counts.other or bool(finite.any())
