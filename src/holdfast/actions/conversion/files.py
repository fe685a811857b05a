"""What a writer answers with: files as lists of parts. Nothing is read or written here, and every size is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.facts.checkpoints.contents import ITEMSIZE, Tensor


class Run(msgspec.Struct, frozen=True):
    """Elements ``start`` to ``stop`` of the flattened tensor, written in ``dtype``."""

    tensor: Tensor
    start: int
    stop: int
    dtype: str

    @property
    def size(self) -> int:
        """Bytes of it."""
        return (self.stop - self.start) * ITEMSIZE[self.dtype]


class Box(msgspec.Struct, frozen=True):
    """A part of a tensor, cut out of any of its dimensions, row-major: ``shape`` from index ``start`` on."""

    tensor: Tensor
    start: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes of it."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


class Zeros(msgspec.Struct, frozen=True):
    """So many bytes of zero: what pads a flat buffer."""

    size: int


class Copy(msgspec.Struct, frozen=True):
    """``size`` bytes of a file of the source as they are, from ``offset`` on: a configuration, a tokenizer.

    ``file`` is its path below the source's root.
    """

    file: str
    offset: int
    size: int


class Record(msgspec.Struct, frozen=True):
    """One record of an archive."""

    name: str
    parts: tuple[bytes | Run | Box | Zeros, ...]

    @property
    def size(self) -> int:
        """Bytes of it."""
        return size_of(self.parts)


class Archive(msgspec.Struct, frozen=True):
    """A file of torch.save: stored records in a zip archive, each aligned to 64 bytes (``archives``)."""

    records: tuple[Record, ...]
    size: int


Part = bytes | Run | Box | Zeros | Copy | Archive


class File(msgspec.Struct, frozen=True):
    """One file: its path below the target ('' where the target is the file), and its parts in order."""

    path: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of it."""
        return size_of(self.parts)


#: Size in bytes and xxh3 (128 bits, hex) of each file that was written, by its path -> the file that tells of them.
Seal = Callable[[Mapping[str, tuple[int, str]]], File]


class Written(msgspec.Struct, frozen=True):
    """The files of a checkpoint, and sentences about what the format cannot hold and is not in them.

    ``seal``, where there is one, makes the last file, once all others are written: a manifest of their hashes.
    """

    files: tuple[File, ...]
    losses: tuple[str, ...] = ()
    seal: Seal | None = None


def whole(tensor: Tensor, dtype: str | None = None) -> Run:
    """The whole tensor; in its own dtype, unless one is named."""
    return Run(tensor, 0, tensor.numel, dtype or tensor.dtype)


def size_of(parts: Sequence[Part]) -> int:
    """Bytes of all of them."""
    return sum(len(part) if isinstance(part, bytes) else part.size for part in parts)
