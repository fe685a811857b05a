"""Reads the values of a tensor block by block in row-major order, across all its files.

A tensor is streamed if its shards are contiguous ranges of the flattened tensor (flat shards, full
rows, or the full tensor). Otherwise (column shards, transposed weights) it is assembled in memory
first, which needs its own size plus that of its largest shard.
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

from holdfast.ckpt.contents import ITEMSIZE, Tensor, TensorShard
from holdfast.ckpt.files.torch_files import TorchFile, is_dense, read_embedded_file
from holdfast.ckpt.files.torch_pickle import TensorRef
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.text import os_error_reason

#: Bytes read at once.
BLOCK_BYTES = 8 << 20
_LARGEST_E4M3 = 448
Array = np.ndarray[Any, np.dtype[Any]]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype for torch's name; ml_dtypes provides those that numpy lacks."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


#: Limits of the preamble cache: bytes before a packed shard's values, number of entries.
_MAX_PREAMBLE_BYTES, _MAX_PREAMBLES = 8 << 10, 1024
#: Offset of the CRC32 in a zip record header.
_CRC_OFFSET = 14


class _Preamble(msgspec.Struct, frozen=True):
    """The bytes before the values of packed shards of one dtype and shape."""

    front: bytes
    sum_at: int
    strides: tuple[int, ...] | None

    def fits(self, front: bytes) -> bool:
        """Return whether ``front`` equals this preamble except for the CRC32 of the values."""
        at = self.sum_at
        return front[:at] == self.front[:at] and front[at + 4 :] == self.front[at + 4 :]


class TensorReader:
    """Reads tensors of the checkpoint under ``root``; a context manager, as it keeps files open.

    Every method raises CheckpointUnreadable if a file is missing or too short, or a tensor is not
    fully covered.
    """

    def __init__(self, root: Path, block: int = BLOCK_BYTES) -> None:
        self.root = root
        self._block = block
        self._handles: dict[str, int] = {}
        self._preambles: dict[tuple[int, str, tuple[int, ...]], _Preamble] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles.values():
            with suppress(OSError):
                os.close(handle)
        self._handles.clear()

    def read_tensor(self, tensor: Tensor) -> Array:
        """Return the tensor in its shape."""
        if any(shard.strides for shard in tensor.shards) or contiguous_runs(tensor) is None:
            return self._assemble(tensor)
        flat, at = np.empty(tensor.numel, numpy_dtype(tensor.dtype)), 0
        for block in self.blocks(tensor):
            flat[at : at + len(block)] = block
            at += len(block)
        return flat.reshape(tensor.shape)

    def read_bytes(self, file: str, offset: int, size: int) -> Iterator[Array]:
        """Yield raw bytes of a file."""
        for at in range(0, size, self._block):
            yield self._read(file, offset + at, min(self._block, size - at))

    def blocks(self, tensor: Tensor, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield elements ``start`` to ``stop`` of the flattened tensor.

        A block is valid until the next iteration.
        """
        end = tensor.numel if stop is None else stop
        if end <= start:
            return
        located = contiguous_runs(tensor)
        if located is None:
            flat = self._assemble(tensor).reshape(-1)[start:end]
            step = max(1, self._block // flat.itemsize)
            yield from (flat[at : at + step] for at in range(0, len(flat), step))
            return
        at = start
        for first, last, shard in located:
            if first > at:
                break
            if last > at:
                upto = min(last, end)
                yield from self._read_run(
                    tensor, self.unpack(shard, tensor), at - first, upto - first
                )
                at = upto
            if at == end:
                return
        raise self._uncovered(tensor, f"elements from {at:,} on, of {tensor.numel:,},")

    def unpack(self, shard: TensorShard, tensor: Tensor) -> TensorShard:
        """Return the shard with the offset of its values, if it is an embedded torch.save file."""
        if not shard.packed:
            return shard
        known = self._preambles.get((shard.packed, tensor.dtype, shard.shape))
        if known is not None and known.fits(
            os.pread(self.handle(shard.file), len(known.front), shard.offset)
        ):
            return msgspec.structs.replace(
                shard, offset=shard.offset + len(known.front), strides=known.strides, packed=0
            )
        located = self.locate_in(self.read_packed_file(shard), shard, tensor)
        self._cache_preamble(shard, tensor, located)
        return located

    def _cache_preamble(self, shard: TensorShard, tensor: Tensor, located: TensorShard) -> None:
        """Cache the preamble, which shards of one dtype and shape share except for the CRC32."""
        front = os.pread(
            self.handle(shard.file),
            min(located.offset - shard.offset, _MAX_PREAMBLE_BYTES),
            shard.offset,
        )
        header = front.rfind(b"PK\x03\x04")
        if (
            len(front) == located.offset - shard.offset
            and header >= 0
            and len(self._preambles) < _MAX_PREAMBLES
        ):
            known = _Preamble(front=front, sum_at=header + _CRC_OFFSET, strides=located.strides)
            self._preambles[shard.packed, tensor.dtype, shard.shape] = known

    def read_packed_file(self, shard: TensorShard) -> TorchFile:
        """Read the embedded torch.save file of a packed shard."""
        return read_embedded_file(
            self.root / shard.file, self.handle(shard.file), shard.offset, shard.packed
        )

    def locate_in(self, located: TorchFile, shard: TensorShard, tensor: Tensor) -> TensorShard:
        """Return ``shard`` with the offset of its values in ``located``."""
        value = located.value
        if (
            not isinstance(value, TensorRef)
            or value.dtype != tensor.dtype
            or value.shape != shard.shape
        ):
            why = f"the data at byte {shard.offset:,} is not a shard of {tensor.name}"
            raise CheckpointUnreadable(self.root / shard.file, why=why)
        (inner,) = located.shards(value, shard.file)
        return msgspec.structs.replace(shard, offset=inner.offset, strides=inner.strides, packed=0)

    def _read_run(
        self, tensor: Tensor, shard: TensorShard, start: int, stop: int
    ) -> Iterator[Array]:
        """Yield elements ``start`` to ``stop`` of a contiguous shard, counted within the shard."""
        if shard.strides is not None:
            flat = self._read_shard(tensor, shard).reshape(-1)[start:stop]
            yield np.ascontiguousarray(flat)  # of an expanded or strided view
            return
        itemsize = ITEMSIZE[tensor.dtype]
        step = max(1, self._block // itemsize)
        for at in range(start, stop, step):
            upto = min(at + step, stop)
            yield self._read(shard.file, shard.offset + at * itemsize, (upto - at) * itemsize).view(
                numpy_dtype(tensor.dtype)
            )

    def _assemble(self, tensor: Tensor) -> Array:
        if (
            sum(shard.numel for shard in tensor.shards) < tensor.numel
        ):  # before memory is allocated for data that does not exist
            raise self._uncovered(tensor, "some elements")
        result = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
        one = len(tensor.shards) == 1 and tensor.shards[0].shape == tensor.shape
        covered = None if one else np.zeros(tensor.shape, bool)
        for packed in tensor.shards:
            shard = self.unpack(packed, tensor)
            extent = (tensor.numel,) if shard.flat else tensor.shape
            if any(
                at + n > size for at, n, size in zip(shard.start, shard.shape, extent, strict=True)
            ):
                raise CheckpointUnreadable(
                    self.root / shard.file,
                    why=f"a shard of {tensor.name} extends beyond the tensor",
                )
            if shard.flat:
                region: Any = slice(shard.start[0], shard.start[0] + shard.shape[0])
                result.reshape(-1)[region] = self._read_shard(tensor, shard)
                target: Array | None = covered.reshape(-1) if covered is not None else None
            else:
                region = tuple(
                    slice(at, at + n) for at, n in zip(shard.start, shard.shape, strict=True)
                )
                result[region] = self._read_shard(tensor, shard)
                target = covered
            if target is not None:
                target[region] = True
        if (covered is not None and not covered.all()) or not tensor.shards:
            raise self._uncovered(tensor, "some elements")
        return result

    def _read_shard(self, tensor: Tensor, shard: TensorShard) -> Array:
        """Return a full shard in its shape."""
        dtype = numpy_dtype(tensor.dtype)
        if shard.strides is None:
            return (
                self._read(shard.file, shard.offset, shard.numel * dtype.itemsize)
                .view(dtype)
                .reshape(shard.shape)
            )
        extent = 1 + sum((n - 1) * step for n, step in zip(shard.shape, shard.strides, strict=True))
        flat = self._read(shard.file, shard.offset, extent * dtype.itemsize).view(dtype)
        steps = [step * dtype.itemsize for step in shard.strides]
        return np.lib.stride_tricks.as_strided(flat, shard.shape, steps, writeable=False)

    def _read(self, file: str, offset: int, size: int) -> Array:
        into = np.empty(size, np.uint8)
        view, done = into.data, 0
        handle = self.handle(file)
        while done < size:
            try:
                read = os.preadv(handle, [view[done:]], offset + done)
            except OSError as error:
                raise CheckpointUnreadable(self.root / file, why=os_error_reason(error)) from error
            if not read:
                raise CheckpointUnreadable(
                    self.root / file, why=f"it is truncated: byte {offset + done:,} does not exist"
                )
            done += read
        return into

    def handle(self, file: str) -> int:
        """Return the file descriptor; valid until 200 other files have been opened."""
        if file not in self._handles:
            if len(self._handles) > 200:  # below the open-file limit of most hosts
                os.close(self._handles.pop(next(iter(self._handles))))
            try:
                self._handles[file] = os.open(
                    self.root / file if file else self.root,
                    os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK,
                )
            except OSError as error:
                raise CheckpointUnreadable(self.root / file, why=os_error_reason(error)) from error
        return self._handles[file]

    def _uncovered(self, tensor: Tensor, what: str) -> CheckpointUnreadable:
        return CheckpointUnreadable(
            self.root, why=f"{what} of {tensor.name} are missing from all files"
        )


def contiguous_runs(tensor: Tensor) -> Sequence[tuple[int, int, TensorShard]] | None:
    """Return (start, stop, shard) for each shard, in elements of the flattened tensor.

    None: a shard is not contiguous.
    """
    located = []
    for shard in tensor.shards:
        first = run_start(tensor.shape, shard)
        if first is None:
            return None
        located.append((first, first + shard.numel, shard))
    return sorted(located, key=lambda item: item[:2])


def run_start(shape: tuple[int, ...], shard: TensorShard) -> int | None:
    """Return where a shard starts in the flattened tensor; None: it is not contiguous."""
    if shard.flat:
        return shard.start[0]
    if shard.shape == shape:
        return 0
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if not is_dense(shard.shape, tuple(strides)):
        return None
    return sum(at * step for at, step in zip(shard.start, strides, strict=True))


def cast_block(block: Array, dtype: str) -> Array:
    """Cast a block to another dtype, rounding to nearest as torch does."""
    target = numpy_dtype(dtype)
    if block.dtype == target:
        return block
    with np.errstate(over="ignore", invalid="ignore"):
        if (
            dtype == "float8_e4m3fn"
        ):  # no infinity: torch saturates to the largest number, ml_dtypes gives NaN
            block = np.clip(block.astype(np.float32), -_LARGEST_E4M3, _LARGEST_E4M3)
        return block.astype(target)
