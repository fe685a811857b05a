"""The numbers of a tensor, block by block in row-major order, from wherever its pieces stand.

A tensor whose pieces are runs of it (flat ones, whole rows, or the whole) is never in memory at once. One whose pieces
cut its rows, or stand there in another order (a shard of a column, a transposed weight), is put together first; that
takes its own size and the largest of its pieces.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ml_dtypes
import msgspec
import numpy as np

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE, Piece, Tensor
from holdfast.facts.checkpoints.files.torch_files import TorchFile, is_dense, read_window
from holdfast.facts.checkpoints.files.torch_pickle import TensorAt

#: Bytes that are read at once.
BLOCK = 8 << 20
_LARGEST_E4M3 = 448
Array = np.ndarray[Any, np.dtype[Any]]


def dtype_of(name: str) -> np.dtype[Any]:
    """Numpy's dtype of torch's name; ml_dtypes has those that numpy lacks."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


#: Bytes before the numbers of a packed piece, and forms of pieces, that are remembered; more are read each time.
_MOST_FRONT, _MOST_ALIKE = 8 << 10, 1024
#: Where a record's CRC32 stands in its header.
_SUM_AT = 14


class _Front(msgspec.Struct, frozen=True):
    """What stands before the numbers of packed pieces of one form: headers, description, in that order always."""

    front: bytes
    sum_at: int
    strides: tuple[int, ...] | None

    def fits(self, front: bytes) -> bool:
        """It is the same, but for the CRC32 of the numbers."""
        at = self.sum_at
        return front[:at] == self.front[:at] and front[at + 4 :] == self.front[at + 4 :]


class Reader:
    """Reads tensors of one checkpoint under ``root``; a context manager, because it keeps files open.

    Every method raises CheckpointUnreadable where a file is not there or too short, or a tensor is not covered.
    """

    def __init__(self, root: Path, block: int = BLOCK) -> None:
        self.root = root
        self._block = block
        self._handles: dict[str, int] = {}
        self._alike: dict[tuple[int, str, tuple[int, ...]], _Front] = {}
        self._unpacked: dict[tuple[str, int], tuple[TensorAt, TorchFile]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles.values():
            with suppress(OSError):
                os.close(handle)
        self._handles.clear()

    def whole(self, tensor: Tensor) -> Array:
        """The tensor in its shape."""
        if any(piece.strides for piece in tensor.pieces) or runs(tensor) is None:
            return self._assembled(tensor)
        flat, at = np.empty(tensor.numel, dtype_of(tensor.dtype)), 0
        for block in self.blocks(tensor):
            flat[at : at + len(block)] = block
            at += len(block)
        return flat.reshape(tensor.shape)

    def raw(self, file: str, offset: int, size: int) -> Iterator[Array]:
        """Bytes of a file as they are, whatever they mean."""
        for at in range(0, size, self._block):
            yield self._bytes(file, offset + at, min(self._block, size - at))

    def blocks(self, tensor: Tensor, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Elements ``start`` to ``stop`` of the flattened tensor; a block is good until the next is asked for."""
        end = tensor.numel if stop is None else stop
        if end <= start:
            return
        found = runs(tensor)
        if found is None:
            flat = self._assembled(tensor).reshape(-1)[start:end]
            step = max(1, self._block // flat.itemsize)
            yield from (flat[at : at + step] for at in range(0, len(flat), step))
            return
        at = start
        for first, last, piece in found:
            if first > at:
                break
            if last > at:
                upto = min(last, end)
                yield from self._run(tensor, self.unpacked(piece, tensor), at - first, upto - first)
                at = upto
            if at == end:
                return
        raise self._uncovered(tensor, f"elements from {at:,} on, of {tensor.numel:,},")

    def unpacked(self, piece: Piece, tensor: Tensor) -> Piece:
        """The piece by where its numbers are, where it stands in a file of torch.save inside of a file."""
        if not piece.packed:
            return piece
        known = self._alike.get((piece.packed, tensor.dtype, piece.shape))
        if known is not None and known.fits(os.pread(self.handle(piece.file), len(known.front), piece.offset)):
            return msgspec.structs.replace(
                piece, offset=piece.offset + len(known.front), strides=known.strides, packed=0
            )
        found = self.within(self.packed_file(piece), piece, tensor)
        self._remember(piece, tensor, found)
        return found

    def _remember(self, piece: Piece, tensor: Tensor, found: Piece) -> None:
        """Keep what stands before its numbers: in another piece of its form that is the same, but for a sum."""
        front = os.pread(self.handle(piece.file), min(found.offset - piece.offset, _MOST_FRONT), piece.offset)
        header = front.rfind(b"PK\x03\x04")
        if len(front) == found.offset - piece.offset and header >= 0 and len(self._alike) < _MOST_ALIKE:
            known = _Front(front=front, sum_at=header + _SUM_AT, strides=found.strides)
            self._alike[piece.packed, tensor.dtype, piece.shape] = known

    def packed_file(self, piece: Piece) -> TorchFile:
        """The file of torch.save that a packed piece stands in."""
        return read_window(self.root / piece.file, self.handle(piece.file), piece.offset, piece.packed)

    def within(self, found: TorchFile, piece: Piece, tensor: Tensor) -> Piece:
        """The piece by where its numbers are, in the file of torch.save that :meth:`packed_file` gave."""
        value = found.value
        if not isinstance(value, TensorAt) or value.dtype != tensor.dtype or value.shape != piece.shape:
            why = f"what stands at byte {piece.offset:,} is no piece of {tensor.name}"
            raise CheckpointUnreadable(self.root / piece.file, why=why)
        (inner,) = found.pieces(value, piece.file)
        return msgspec.structs.replace(piece, offset=inner.offset, strides=inner.strides, packed=0)

    def _run(self, tensor: Tensor, piece: Piece, start: int, stop: int) -> Iterator[Array]:
        """Elements of a piece that is a run of the tensor, counted within the piece."""
        if piece.strides is not None:
            yield self._strided(tensor, piece).reshape(-1)[start:stop]
            return
        itemsize = ITEMSIZE[tensor.dtype]
        step = max(1, self._block // itemsize)
        for at in range(start, stop, step):
            upto = min(at + step, stop)
            yield self._bytes(piece.file, piece.offset + at * itemsize, (upto - at) * itemsize).view(
                dtype_of(tensor.dtype)
            )

    def _assembled(self, tensor: Tensor) -> Array:
        if sum(piece.numel for piece in tensor.pieces) < tensor.numel:  # before memory is taken for what nobody has
            raise self._uncovered(tensor, "some of its elements")
        whole = np.empty(tensor.shape, dtype_of(tensor.dtype))
        one = len(tensor.pieces) == 1 and tensor.pieces[0].shape == tensor.shape
        seen = None if one else np.zeros(tensor.shape, bool)
        for packed in tensor.pieces:
            piece = self.unpacked(packed, tensor)
            extent = (tensor.numel,) if piece.flat else tensor.shape
            if any(at + n > size for at, n, size in zip(piece.start, piece.shape, extent, strict=True)):
                raise CheckpointUnreadable(self.root / piece.file, why=f"a piece of {tensor.name} lies beyond its end")
            if piece.flat:
                places: Any = slice(piece.start[0], piece.start[0] + piece.shape[0])
                whole.reshape(-1)[places] = self._strided(tensor, piece)
                target: Array | None = seen.reshape(-1) if seen is not None else None
            else:
                places = tuple(slice(at, at + n) for at, n in zip(piece.start, piece.shape, strict=True))
                whole[places] = self._strided(tensor, piece)
                target = seen
            if target is not None:
                target[places] = True
        if (seen is not None and not seen.all()) or not tensor.pieces:
            raise self._uncovered(tensor, "some of its elements")
        return whole

    def _strided(self, tensor: Tensor, piece: Piece) -> Array:
        """A whole piece in its shape."""
        dtype = dtype_of(tensor.dtype)
        if piece.strides is None:
            return self._bytes(piece.file, piece.offset, piece.numel * dtype.itemsize).view(dtype).reshape(piece.shape)
        extent = 1 + sum((n - 1) * step for n, step in zip(piece.shape, piece.strides, strict=True))
        flat = self._bytes(piece.file, piece.offset, extent * dtype.itemsize).view(dtype)
        steps = [step * dtype.itemsize for step in piece.strides]
        return np.lib.stride_tricks.as_strided(flat, piece.shape, steps, writeable=False)

    def _bytes(self, file: str, offset: int, size: int) -> Array:
        into = np.empty(size, np.uint8)
        view, done = into.data, 0
        handle = self.handle(file)
        while done < size:
            try:
                read = os.preadv(handle, [view[done:]], offset + done)
            except OSError as error:
                raise CheckpointUnreadable(self.root / file, why=(error.strerror or str(error)).lower()) from error
            if not read:
                raise CheckpointUnreadable(self.root / file, why=f"it is cut short: it has no byte {offset + done:,}")
            done += read
        return into

    def handle(self, file: str) -> int:
        """The open file, good until 200 others were asked for."""
        if file not in self._handles:
            if len(self._handles) > 200:  # below the limit of open files of most machines
                os.close(self._handles.pop(next(iter(self._handles))))
            try:
                self._handles[file] = os.open(
                    self.root / file if file else self.root, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                )
            except OSError as error:
                raise CheckpointUnreadable(self.root / file, why=(error.strerror or str(error)).lower()) from error
        return self._handles[file]

    def _uncovered(self, tensor: Tensor, what: str) -> CheckpointUnreadable:
        return CheckpointUnreadable(self.root, why=f"{what} of {tensor.name} are in none of its files")


def runs(tensor: Tensor) -> Sequence[tuple[int, int, Piece]] | None:
    """Each piece with its first element and that after its last in the flattened tensor; None: one is no run of it."""
    found = []
    for piece in tensor.pieces:
        first = run_start(tensor.shape, piece)
        if first is None:
            return None
        found.append((first, first + piece.numel, piece))
    return sorted(found, key=lambda each: each[:2])


def run_start(shape: tuple[int, ...], piece: Piece) -> int | None:
    """Where a piece begins in the flattened tensor; None where it is no run of it."""
    if piece.flat:
        return piece.start[0]
    if piece.shape == shape:
        return 0
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if not is_dense(piece.shape, tuple(strides)):
        return None
    return sum(at * step for at, step in zip(piece.start, strides, strict=True))


def cast(block: Array, dtype: str) -> Array:
    """The block in another dtype, rounded to the nearest as torch does; the same where it is of it."""
    target = dtype_of(dtype)
    if block.dtype == target:
        return block
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "float8_e4m3fn":  # it has no infinity: torch gives the largest number, ml_dtypes none at all
            block = np.clip(block.astype(np.float32), -_LARGEST_E4M3, _LARGEST_E4M3)
        return block.astype(target)
