"""Locates the fp32 weights and optimizer state of each parameter in ZeRO's flat buffers.

ZeRO-1 and 2 concatenate the parameters of a group in the order of ``param_shapes``, and cut the
result into one equal partition per rank; a parameter may span two partitions, and the last ones end
with padding (deepspeed/runtime/zero/stage_1_and_2.py). ZeRO-3 cuts each parameter into equal
shards, padded at the end, and each rank concatenates its shards, subgroup by subgroup (stage3.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from holdfast.ckpt.contents import ITEMSIZE, FileProblem, TensorShard
from holdfast.ckpt.files.torch_pickle import TensorRef
from holdfast.ckpt.formats.deepspeed.files import MAX_RANKS, RankFile
from holdfast.ckpt.formats.deepspeed.model import Shape, numel, plain_int
from holdfast.core.errors import CheckpointUnreadable

#: The state name of the fp32 weights, beside ``exp_avg`` and others.
WEIGHTS = "fp32"


class BufferSlice(msgspec.Struct, frozen=True, gc=False):
    """``count`` elements of a flat buffer from byte ``offset`` of the file."""

    file: str
    offset: int
    count: int
    dtype: str


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's data: per group its buffers by state, its numbers (``step``), its partition count.

    ``paddings`` are the alignment elements after each parameter; ``starts`` the offsets of
    parameters in the rank's buffer (both are missing in older releases). ``options`` are the
    optimizer's parameter groups. ``odd`` are states with a different layout than the weights.
    """

    rank_file: RankFile
    stage: int | None
    counts: tuple[int, ...]
    buffers: tuple[Mapping[str, BufferSlice], ...]
    numbers: tuple[Mapping[str, Any], ...]
    paddings: tuple[tuple[int, ...], ...]
    starts: tuple[Mapping[str, int], ...]
    options: tuple[Mapping[Any, Any], ...]
    odd: frozenset[str] = frozenset()


def parse_partition(rank_file: RankFile) -> Partition:
    """Parse an ``*_optim_states.pt``. Raises CheckpointUnreadable: not a ZeRO file."""
    declared = (
        rank_file.read.value.get("optimizer_state_dict")
        if isinstance(rank_file.read.value, Mapping)
        else None
    )
    state: Mapping[Any, Any] = declared if isinstance(declared, Mapping) else {}
    flat = state.get("single_partition_of_fp32_groups", state.get("fp32_flat_groups"))
    if not isinstance(flat, (list, tuple)):
        raise CheckpointUnreadable(
            rank_file.read.path, why="not a ZeRO file: it has no flat fp32 weights"
        )
    base = state.get("base_optimizer_state", state.get("optimizer_state_dict"))
    states, options = _optimizer(base)
    weights = [
        *flat,
        *(None for _ in range(len(states) - len(flat))),
    ]  # early ZeRO-3 releases have one for all
    counts = state.get("partition_count", 1)
    counts = tuple(counts) if isinstance(counts, (list, tuple)) else (counts,) * len(flat)
    if not counts or not all(isinstance(count, int) and 0 < count <= MAX_RANKS for count in counts):
        raise CheckpointUnreadable(
            rank_file.read.path, why="it does not record the number of partitions"
        )
    padding = 2 * max(counts) if len(weights) == len(flat) else None
    groups = [
        _buffers(rank_file, group_weights, states.get(at, {}), padding)
        for at, group_weights in enumerate(weights)
    ]
    return Partition(
        rank_file=rank_file,
        stage=plain_int(state.get("zero_stage")),
        counts=_group_counts(state, counts),
        options=options,
        buffers=tuple(buffers for buffers, _ in groups),
        numbers=_numbers(state, groups),
        paddings=tuple(
            tuple(group_weights) for group_weights in state.get("param_alignment_paddings") or ()
        ),
        starts=tuple(
            _param_starts(group_weights)
            for group_weights in state.get("param_slice_mappings") or ()
        ),
        odd=frozenset(
            key for _, numbers in groups for key, value in numbers.items() if is_buffer(value, key)
        ),
    )


def _is_dict(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _optimizer(base: Any) -> tuple[Mapping[Any, Mapping[Any, Any]], tuple[Mapping[Any, Any], ...]]:
    """Return state by group number, and parameter groups; elastic checkpoints have only states."""
    if isinstance(base, Mapping):
        states = {key: item for key, item in (base.get("state") or {}).items() if _is_dict(item)}
        return states, tuple(item for item in base.get("param_groups") or () if _is_dict(item))
    return {at: item for at, item in enumerate(base or ()) if _is_dict(item)}, ()


def _group_counts(state: Mapping[Any, Any], counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the partition counts of subgroups; ZeRO-3 experts have different ones."""
    declared = state.get("ds_zero_partition_groups")
    if not isinstance(declared, (list, tuple)):
        return counts
    return tuple(
        group.get("partition_count", count) if _is_dict(group) else count
        for group, count in zip(declared, counts, strict=False)
    )


def _numbers(
    state: Mapping[Any, Any], tensor: Sequence[tuple[Any, dict[str, Any]]]
) -> tuple[Mapping[str, Any], ...]:
    step = state.get("base_optimizer_state_step")  # elastic checkpoints have one for all groups
    return tuple({**({} if step is None else {"step": step}), **numbers} for _, numbers in tensor)


def _buffers(
    rank_file: RankFile, weights: Any, state: Mapping[Any, Any], padding: int | None
) -> tuple[dict[str, BufferSlice], dict[str, Any]]:
    """Split a state into buffers as long as the weights (plus padding) and numbers.

    ``padding`` None: any length.
    """
    buffers, numbers = {}, {}
    long = weights.shape[0] if isinstance(weights, TensorRef) and len(weights.shape) == 1 else None
    for key, value in {**state, WEIGHTS: weights}.items():
        if is_buffer(value, key) and (
            long is None or padding is None or long <= value.shape[0] <= long + padding
        ):
            buffers[str(key)] = _buffer_slice(rank_file, value)
        else:
            numbers[str(key)] = value
    numbers.pop(WEIGHTS, None)
    return buffers, numbers


def is_buffer(value: Any, key: Any) -> TypeGuard[TensorRef]:
    """Return whether the value is a one-dimensional tensor other than the step."""
    return isinstance(value, TensorRef) and len(value.shape) == 1 and key != "step"


def _buffer_slice(rank_file: RankFile, tensor: TensorRef) -> BufferSlice:
    shards = rank_file.read.shards(tensor, rank_file.file)
    if shards and shards[0].strides is not None:
        raise CheckpointUnreadable(rank_file.read.path, why="a flat buffer is not contiguous")
    return BufferSlice(
        rank_file.file, shards[0].offset if shards else 0, tensor.shape[0], tensor.dtype
    )


def _param_starts(mapping: Any) -> Mapping[str, int]:
    """Return where each parameter starts in the rank's buffer (``fragment_address`` objects)."""
    if not _is_dict(mapping):
        return {}
    states = {name: getattr(item, "__dict__", {}).get("state") for name, item in mapping.items()}
    return {
        str(name): state["start"]
        for name, state in states.items()
        if _is_dict(state) and state.get("numel") and isinstance(state.get("start"), int)
    }


# --- ZeRO-1 and 2 ---


def zero12_shards(
    group: int, shapes: Mapping[str, Shape], ranks: Mapping[int, Partition], key: str
) -> Iterator[tuple[str, tuple[TensorShard, ...]]]:
    """Yield the shards of each parameter of a group, from the buffers named ``key``."""
    runs = {
        rank: partition.buffers[group][key]
        for rank, partition in ranks.items()
        if key in partition.buffers[group]
    }
    size = partition_size(group, shapes, ranks)
    for name, (start, stop) in parameter_ranges(group, shapes, ranks).items():
        shards: list[TensorShard] = []
        for rank in range(start // size, -(-stop // size)) if stop > start and size else ():
            first, last = max(start, rank * size), min(stop, (rank + 1) * size)
            if rank in runs:
                shards += _slice_shards(
                    runs[rank], first - rank * size, last - first, first - start
                )
        yield name, tuple(shards)


def parameter_ranges(
    group: int, shapes: Mapping[str, Shape], ranks: Mapping[int, Partition]
) -> dict[str, tuple[int, int]]:
    """Return the range of each parameter in the full flat buffer of the group."""
    declared = next(
        (
            partition.paddings[group]
            for partition in ranks.values()
            if len(partition.paddings) > group
        ),
        (),
    )
    paddings = declared if len(declared) == len(shapes) else (0,) * len(shapes)
    at, ranges = 0, {}
    for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
        ranges[name] = (at, at + numel(shape))
        at += numel(shape) + padding
    return ranges


def partition_size(group: int, shapes: Mapping[str, Shape], ranks: Mapping[int, Partition]) -> int:
    """Return the elements of one partition including padding.

    Depending on the release, either the weights or Adam's moments are saved without padding, so the
    longest buffer of all ranks has the partition's length; without all ranks, DeepSpeed's alignment
    rule applies.
    """
    longest = max(
        (run.count for partition in ranks.values() for run in partition.buffers[group].values()),
        default=0,
    )
    count = max(partition.counts[group] for partition in ranks.values())
    if len(ranks) < count:
        total = max(
            (stop for _, stop in parameter_ranges(group, shapes, ranks).values()), default=0
        )
        return max(longest, -(-total // (2 * count)) * 2)
    return longest


def zero12_misfits(
    groups: Sequence[Mapping[str, Shape]], ranks: Mapping[int, Partition]
) -> Iterator[FileProblem]:
    """Yield ranks whose buffers are too short, or that record other parameter offsets."""
    for group, shapes in enumerate(groups):
        size, ranges = partition_size(group, shapes, ranks), parameter_ranges(group, shapes, ranks)
        total = max((stop for _, stop in ranges.values()), default=0)
        for rank, partition in ranks.items():
            needed = max(0, min(size, total - rank * size))
            if any(run.count < needed for run in partition.buffers[group].values()) or (
                total and not size
            ):
                yield _misfit_problem(
                    partition, f"group {group} needs {needed:,} elements, but the buffer has fewer"
                )
            elif len(partition.starts) > group and (
                name := _misplaced_param(partition.starts[group], ranges, rank * size)
            ):
                yield _misfit_problem(
                    partition, f"the recorded offset of {name} contradicts the parameter shapes"
                )


def _misplaced_param(
    starts: Mapping[str, int], where: Mapping[str, tuple[int, int]], begin: int
) -> str:
    for name, start in starts.items():
        if name in where and start != max(where[name][0], begin) - begin:
            return name
    return ""


# --- ZeRO-3 ---


def zero3_shards(
    groups: Sequence[Mapping[str, Shape]], ranks: Mapping[int, Partition], key: str
) -> Iterator[tuple[str, tuple[TensorShard, ...]]]:
    """Yield the shards of each parameter, from the buffers named ``key``.

    A rank's subgroup buffers form one stream: early releases saved them as one buffer.
    """
    streams = {rank: _stream(item, key) for rank, item in ranks.items()}
    at = 0
    for group, shapes in enumerate(groups):
        count = part_count(group, ranks)
        for name, shape in shapes.items():
            total = numel(shape)
            share = -(-total // count)
            shards: list[TensorShard] = []
            for rank, stream in streams.items():
                start = rank * share
                if start < total:
                    shards += _cut_stream(
                        stream, at, share if start + share <= total else total - start, start
                    )
            at += share
            yield name, tuple(shards)


def part_count(group: int, ranks: Mapping[int, Partition]) -> int:
    """Return the number of shards of each parameter in a subgroup."""
    return max(
        partition.counts[min(group, len(partition.counts) - 1)] for partition in ranks.values()
    )


def zero3_misfits(
    groups: Sequence[Mapping[str, Shape]], ranks: Mapping[int, Partition]
) -> Iterator[FileProblem]:
    """Yield ranks whose buffers are shorter than their shards of the parameters."""
    counts = [part_count(group, ranks) for group in range(len(groups))]
    parts = zip(counts, groups, strict=True)
    needed = sum(-(-numel(shape) // count) for count, shapes in parts for shape in shapes.values())
    for partition in ranks.values():
        there = sum(buffers[WEIGHTS].count for buffers in partition.buffers if WEIGHTS in buffers)
        if there < needed:
            yield _misfit_problem(
                partition, f"its shards need {needed:,} elements, but its buffers have {there:,}"
            )


def _stream(partition: Partition, key: str) -> tuple[list[int], list[BufferSlice]]:
    """Return a rank's slices, and where each starts in their concatenation."""
    begins, runs, at = [], [], 0
    for buffers in partition.buffers:
        run = buffers.get(key)
        if run is not None:
            begins.append(at)
            runs.append(run)
        at += run.count if run is not None else buffers[WEIGHTS].count if WEIGHTS in buffers else 0
    return begins, runs


def _cut_stream(
    stream: tuple[list[int], list[BufferSlice]], at: int, count: int, start: int
) -> Sequence[TensorShard]:
    """Return shards for elements ``at`` to ``at + count`` of a stream.

    They are the elements of the parameter from ``start`` on.
    """
    begins, runs = stream
    index = bisect_right(begins, at) - 1
    if (
        index >= 0 and at + count <= begins[index] + runs[index].count
    ):  # the case in all but early releases
        return _slice_shards(runs[index], at - begins[index], count, start)
    shards: list[TensorShard] = []
    for begin, run in zip(begins[max(0, index) :], runs[max(0, index) :], strict=True):
        first, last = max(at, begin), min(at + count, begin + run.count)
        if first < last:
            shards += _slice_shards(run, first - begin, last - first, start + first - at)
    return shards


def _slice_shards(run: BufferSlice, at: int, count: int, start: int) -> Sequence[TensorShard]:
    """Return ``count`` elements of a slice as a shard, up to its end."""
    inside = count if at + count <= run.count else run.count - at
    if inside <= 0:
        return ()
    offset = run.offset + at * ITEMSIZE[run.dtype]
    return (TensorShard(file=run.file, offset=offset, shape=(inside,), start=(start,), flat=True),)


def state_misfits(ranks: Mapping[int, Partition]) -> Iterator[FileProblem]:
    """Yield ranks with a state laid out differently than on other ranks."""
    usual = frozenset.intersection(*(partition.odd for partition in ranks.values()))
    for partition in ranks.values():
        if odd := sorted(partition.odd - usual):
            yield _misfit_problem(partition, f"its {odd[0]} and its weights differ in length")


def _misfit_problem(partition: Partition, why: str) -> FileProblem:
    return FileProblem(
        kind="unreadable", file=partition.rank_file.file, why=why, rank=partition.rank_file.rank
    )
