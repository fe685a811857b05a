"""Target files as lists of parts with known sizes; nothing is read or written here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.ckpt.contents import ITEMSIZE, Tensor


class TensorRun(msgspec.Struct, frozen=True):
    """Elements ``start`` to ``stop`` of the flattened tensor, written as ``dtype``."""

    tensor: Tensor
    start: int
    stop: int
    dtype: str

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return (self.stop - self.start) * ITEMSIZE[self.dtype]


class TensorBox(msgspec.Struct, frozen=True):
    """A box of a tensor in row-major order: ``shape`` from index ``start`` on."""

    tensor: Tensor
    start: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


class Zeros(msgspec.Struct, frozen=True):
    """``size`` zero bytes: the padding of a flat buffer."""

    size: int


class SourceCopy(msgspec.Struct, frozen=True):
    """``size`` bytes of a source file from ``offset``, unchanged: a configuration, a tokenizer.

    ``file`` is its path below the source's root.
    """

    file: str
    offset: int
    size: int


class ArchiveRecord(msgspec.Struct, frozen=True):
    """One record of an archive."""

    name: str
    parts: tuple[bytes | TensorRun | TensorBox | Zeros, ...]

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return total_size(self.parts)


class Archive(msgspec.Struct, frozen=True):
    """A torch.save file: uncompressed zip records, each aligned to 64 bytes (``archives``)."""

    records: tuple[ArchiveRecord, ...]
    size: int


Part = bytes | TensorRun | TensorBox | Zeros | SourceCopy | Archive


class TargetFile(msgspec.Struct, frozen=True):
    """One file: its path below the target ('' if the target is the file), and its parts."""

    path: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return total_size(self.parts)


#: (Path -> size in bytes and 128-bit xxh3 in hex of each written file) -> the manifest file.
Seal = Callable[[Mapping[str, tuple[int, str]]], TargetFile]


class TargetFiles(msgspec.Struct, frozen=True):
    """The files of a checkpoint, and sentences about data the format cannot hold.

    ``seal``, if any, creates the last file once all others are written: a manifest of their hashes.
    """

    files: tuple[TargetFile, ...]
    losses: tuple[str, ...] = ()
    seal: Seal | None = None


def whole_tensor(tensor: Tensor, dtype: str | None = None) -> TensorRun:
    """Return the complete tensor as one run, by default in its own dtype."""
    return TensorRun(tensor, 0, tensor.numel, dtype or tensor.dtype)


def total_size(parts: Sequence[Part]) -> int:
    """Return the size of all parts in bytes."""
    return sum(len(part) if isinstance(part, bytes) else part.size for part in parts)
