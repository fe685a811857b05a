"""Compares values that a checkpoint stores more than once.

Covers shards replicated by several ranks, 16-bit copies of fp32 weights, and tied weights stored
under both names.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.ckpt.contents import CheckpointContents, Tensor, TensorShard
from holdfast.ckpt.tensor_blocks import TensorReader, run_start
from holdfast.ckpt.verify.coverage import overlapping_shards
from holdfast.ckpt.verify.tensor_comparison import TensorDifference, compare_tensors
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown


class ReplicaPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two copies of the same values: ``kind`` is replica, half or tie; ``files`` hold them."""

    kind: str
    name: str
    other: str
    files: tuple[str, ...]
    difference: TensorDifference | Unknown


def compare_replicas(contents: CheckpointContents, reader: TensorReader) -> Iterator[ReplicaPair]:
    """Yield each pair of copies, compared."""
    yield from _shard_replicas(contents, reader)
    for name, half in contents.halves.items():
        tensor = contents.tensors.get(name)
        if tensor is not None and tensor.numel == half.numel:
            yield _compare_pair("half", name, name, (tensor, half), reader)
    for name, other in contents.ties.items():
        first, second = contents.tensors.get(name), contents.tensors.get(other)
        if (
            first is not None
            and second is not None
            and first != second
            and first.numel == second.numel
        ):
            yield _compare_pair("tie", name, other, (first, second), reader)


def _shard_replicas(contents: CheckpointContents, reader: TensorReader) -> Iterator[ReplicaPair]:
    for name, tensor in _all_tensors(contents):
        if len(tensor.shards) > 1:
            for first, second in overlapping_shards(tensor):
                yield _compare_pair(
                    "replica", name, name, _common_part(tensor, first, second), reader
                )


def _all_tensors(contents: CheckpointContents) -> Iterator[tuple[str, Tensor]]:
    yield from contents.tensors.items()
    yield from contents.halves.items()
    for name, states in (contents.optimizer.tensors if contents.optimizer else {}).items():
        yield from ((f"{state} of {name}", tensor) for state, tensor in states.items())


def _common_part(tensor: Tensor, first: TensorShard, second: TensorShard) -> tuple[Tensor, Tensor]:
    """Return the region common to both shards as two tensors.

    Where it cannot be cut out, the tensor has no shards.
    """
    if (first.flat, first.start, first.shape) == (second.flat, second.start, second.shape):
        return _as_tensor(tensor, first), _as_tensor(tensor, second)
    starts = run_start(tensor.shape, first) or 0, run_start(tensor.shape, second) or 0
    lower = max(starts)
    upper = min(start + shard.numel for start, shard in zip(starts, (first, second), strict=True))
    return (
        _slice_shard(tensor, first, lower - starts[0], upper - lower),
        _slice_shard(tensor, second, lower - starts[1], upper - lower),
    )


def _as_tensor(tensor: Tensor, shard: TensorShard) -> Tensor:
    own = msgspec.structs.replace(shard, start=(0,) * len(shard.shape), flat=False)
    return msgspec.structs.replace(tensor, shape=shard.shape, shards=(own,))


def _slice_shard(tensor: Tensor, shard: TensorShard, skip: int, size: int) -> Tensor:
    if shard.strides is not None or shard.packed:
        return msgspec.structs.replace(tensor, shape=(size,), shards=())
    offset = shard.offset + skip * (tensor.size // tensor.numel)
    own = TensorShard(file=shard.file, offset=offset, shape=(size,), start=(0,))
    return msgspec.structs.replace(tensor, shape=(size,), shards=(own,))


def _compare_pair(
    kind: str, name: str, other: str, pair: tuple[Tensor, Tensor], reader: TensorReader
) -> ReplicaPair:
    files = tuple(dict.fromkeys(shard.file for tensor in pair for shard in tensor.shards[:1]))
    difference: TensorDifference | Unknown
    try:
        difference = compare_tensors(reader, pair[0], reader, pair[1], rounded=True)
    except CheckpointUnreadable as error:
        difference = Unknown(error.why)
    return ReplicaPair(kind=kind, name=name, other=other, files=files, difference=difference)
