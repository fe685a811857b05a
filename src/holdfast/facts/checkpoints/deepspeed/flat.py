"""Where the fp32 weights and the optimizer's state of each parameter stand in ZeRO's flat buffers.

ZeRO-1 and 2 lay the parameters of a group one after another, in the order of ``param_shapes``, and cut the whole into
as many equal partitions as there are ranks; a parameter may lie across two of them, and the last ones end with padding
(deepspeed/runtime/zero/stage_1_and_2.py). ZeRO-3 cuts each parameter by itself into equal parts, padded at its end, and
each rank lays its own parts one after another, subgroup by subgroup (stage3.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE, Gap, Piece
from holdfast.facts.checkpoints.deepspeed.files import MOST_RANKS, Shard
from holdfast.facts.checkpoints.deepspeed.model import Shape, number, numel
from holdfast.facts.checkpoints.files.torch_pickle import TensorAt

#: The name that the fp32 weights have beside ``exp_avg`` and the others.
WEIGHTS = "fp32"


class Run(msgspec.Struct, frozen=True, gc=False):
    """So many elements of a flat buffer, from byte ``offset`` of the file on."""

    file: str
    offset: int
    count: int
    dtype: str


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has: for each group its buffers by state, its numbers (``step``), and how many partitions it has.

    ``paddings`` are the elements after each parameter that align the next one, ``starts`` where the file itself says
    that parameters begin in the rank's buffer (neither is known of older releases). ``options`` are the optimizer's
    parameter groups as the optimizer has them. ``odd`` are states that are not laid out as the weights are.
    """

    shard: Shard
    stage: int | None
    counts: tuple[int, ...]
    buffers: tuple[Mapping[str, Run], ...]
    numbers: tuple[Mapping[str, Any], ...]
    paddings: tuple[tuple[int, ...], ...]
    starts: tuple[Mapping[str, int], ...]
    options: tuple[Mapping[Any, Any], ...]
    odd: frozenset[str] = frozenset()


def partition_of(shard: Shard) -> Partition:
    """What an ``*_optim_states.pt`` holds. Raises CheckpointUnreadable: it is none of ZeRO's."""
    said = shard.read.value.get("optimizer_state_dict") if isinstance(shard.read.value, Mapping) else None
    state: Mapping[Any, Any] = said if isinstance(said, Mapping) else {}
    flat = state.get("single_partition_of_fp32_groups", state.get("fp32_flat_groups"))
    if not isinstance(flat, (list, tuple)):
        raise CheckpointUnreadable(shard.read.path, why="it is not of ZeRO: it has no flat fp32 weights")
    base = state.get("base_optimizer_state", state.get("optimizer_state_dict"))
    states, options = _optimizer(base)
    weights = [*flat, *(None for _ in range(len(states) - len(flat)))]  # early releases of ZeRO-3 have one for all
    counts = state.get("partition_count", 1)
    counts = tuple(counts) if isinstance(counts, (list, tuple)) else (counts,) * len(flat)
    if not counts or not all(isinstance(count, int) and 0 < count <= MOST_RANKS for count in counts):
        raise CheckpointUnreadable(shard.read.path, why="it does not say into how many partitions it was cut")
    padding = 2 * max(counts) if len(weights) == len(flat) else None
    found = [_buffers(shard, each, states.get(at, {}), padding) for at, each in enumerate(weights)]
    return Partition(
        shard=shard, stage=number(state.get("zero_stage")), counts=_group_counts(state, counts), options=options,
        buffers=tuple(buffers for buffers, _ in found), numbers=_numbers(state, found),
        paddings=tuple(tuple(each) for each in state.get("param_alignment_paddings") or ()),
        starts=tuple(_starts(each) for each in state.get("param_slice_mappings") or ()),
        odd=frozenset(key for _, numbers in found for key, value in numbers.items() if is_buffer(value, key)),
    )  # fmt: skip


def _is_dict(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _optimizer(base: Any) -> tuple[Mapping[Any, Mapping[Any, Any]], tuple[Mapping[Any, Any], ...]]:
    """State by group number, and the parameter groups; elastic checkpoints have a list of states alone."""
    if isinstance(base, Mapping):
        states = {key: each for key, each in (base.get("state") or {}).items() if _is_dict(each)}
        return states, tuple(each for each in base.get("param_groups") or () if _is_dict(each))
    return {at: each for at, each in enumerate(base or ()) if _is_dict(each)}, ()


def _group_counts(state: Mapping[Any, Any], counts: tuple[int, ...]) -> tuple[int, ...]:
    """Those of subgroups, where ZeRO-3 has experts in other groups of ranks."""
    said = state.get("ds_zero_partition_groups")
    if not isinstance(said, (list, tuple)):
        return counts
    return tuple(
        each.get("partition_count", count) if _is_dict(each) else count
        for each, count in zip(said, counts, strict=False)
    )


def _numbers(state: Mapping[Any, Any], found: Sequence[tuple[Any, dict[str, Any]]]) -> tuple[Mapping[str, Any], ...]:
    step = state.get("base_optimizer_state_step")  # elastic checkpoints have one for all groups
    return tuple({**({} if step is None else {"step": step}), **numbers} for _, numbers in found)


def _buffers(
    shard: Shard, weights: Any, state: Mapping[Any, Any], padding: int | None
) -> tuple[dict[str, Run], dict[str, Any]]:
    """Buffers as long as the weights, or as those with their padding; the rest are numbers. None: of any length."""
    buffers, numbers = {}, {}
    long = weights.shape[0] if isinstance(weights, TensorAt) and len(weights.shape) == 1 else None
    for key, value in {**state, WEIGHTS: weights}.items():
        if is_buffer(value, key) and (long is None or padding is None or long <= value.shape[0] <= long + padding):
            buffers[str(key)] = _run(shard, value)
        else:
            numbers[str(key)] = value
    numbers.pop(WEIGHTS, None)
    return buffers, numbers


def is_buffer(value: Any, key: Any) -> TypeGuard[TensorAt]:
    """A tensor of one dimension, which the step is not."""
    return isinstance(value, TensorAt) and len(value.shape) == 1 and key != "step"


def _run(shard: Shard, found: TensorAt) -> Run:
    pieces = shard.read.pieces(found, shard.file)
    if pieces and pieces[0].strides is not None:
        raise CheckpointUnreadable(shard.read.path, why="a flat buffer in it has gaps")
    return Run(shard.file, pieces[0].offset if pieces else 0, found.shape[0], found.dtype)


def _starts(mapping: Any) -> Mapping[str, int]:
    """``fragment_address`` objects: where each parameter's part begins in the rank's buffer."""
    if not _is_dict(mapping):
        return {}
    states = {name: getattr(each, "__dict__", {}).get("state") for name, each in mapping.items()}
    return {
        str(name): state["start"]
        for name, state in states.items()
        if _is_dict(state) and state.get("numel") and isinstance(state.get("start"), int)
    }


# --- ZeRO-1 and 2 ------------------------------------------------------------------------------------------------


def across(
    group: int, shapes: Mapping[str, Shape], ranks: Mapping[int, Partition], key: str
) -> Iterator[tuple[str, tuple[Piece, ...]]]:
    """The pieces of each parameter of a group, of the buffers named ``key``."""
    runs = {rank: each.buffers[group][key] for rank, each in ranks.items() if key in each.buffers[group]}
    size = partition_size(group, shapes, ranks)
    for name, (start, stop) in places(group, shapes, ranks).items():
        found: list[Piece] = []
        for rank in range(start // size, -(-stop // size)) if stop > start and size else ():
            first, last = max(start, rank * size), min(stop, (rank + 1) * size)
            if rank in runs:
                found += _part(runs[rank], first - rank * size, last - first, first - start)
        yield name, tuple(found)


def places(group: int, shapes: Mapping[str, Shape], ranks: Mapping[int, Partition]) -> dict[str, tuple[int, int]]:
    """Where each parameter begins and ends in the whole flat buffer of the group."""
    said = next((each.paddings[group] for each in ranks.values() if len(each.paddings) > group), ())
    paddings = said if len(said) == len(shapes) else (0,) * len(shapes)
    at, found = 0, {}
    for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
        found[name] = (at, at + numel(shape))
        at += numel(shape) + padding
    return found


def partition_size(group: int, shapes: Mapping[str, Shape], ranks: Mapping[int, Partition]) -> int:
    """Elements of one partition with its padding.

    The weights are saved without padding and Adam's moments with it (or the other way round, by release), so the
    longest buffer of all ranks is as long as a partition; without all ranks, the rule by which DeepSpeed aligns.
    """
    longest = max((run.count for each in ranks.values() for run in each.buffers[group].values()), default=0)
    count = max(each.counts[group] for each in ranks.values())
    if len(ranks) < count:
        total = max((stop for _, stop in places(group, shapes, ranks).values()), default=0)
        return max(longest, -(-total // (2 * count)) * 2)
    return longest


def misfits_across(groups: Sequence[Mapping[str, Shape]], ranks: Mapping[int, Partition]) -> Iterator[Gap]:
    """Ranks whose buffers are too short for the shapes, or that say themselves that a parameter begins elsewhere."""
    for group, shapes in enumerate(groups):
        size, where = partition_size(group, shapes, ranks), places(group, shapes, ranks)
        total = max((stop for _, stop in where.values()), default=0)
        for rank, each in ranks.items():
            needed = max(0, min(size, total - rank * size))
            if any(run.count < needed for run in each.buffers[group].values()) or (total and not size):
                yield _misfit(each, f"group {group} needs {needed:,} elements of it, and it has fewer")
            elif len(each.starts) > group and (name := _elsewhere(each.starts[group], where, rank * size)):
                yield _misfit(each, f"it has {name} at another place than the shapes of the parameters say")


def _elsewhere(starts: Mapping[str, int], where: Mapping[str, tuple[int, int]], begin: int) -> str:
    for name, start in starts.items():
        if name in where and start != max(where[name][0], begin) - begin:
            return name
    return ""


# --- ZeRO-3 --------------------------------------------------------------------------------------------------------


def parted(
    groups: Sequence[Mapping[str, Shape]], ranks: Mapping[int, Partition], key: str
) -> Iterator[tuple[str, tuple[Piece, ...]]]:
    """The pieces of each parameter, of the buffers named ``key``.

    The subgroups' buffers of a rank are one stream: early releases saved them as one buffer.
    """
    streams = {rank: _stream(each, key) for rank, each in ranks.items()}
    at = 0
    for group, shapes in enumerate(groups):
        count = part_count(group, ranks)
        for name, shape in shapes.items():
            total = numel(shape)
            share = -(-total // count)
            found: list[Piece] = []
            for rank, stream in streams.items():
                start = rank * share
                if start < total:
                    found += _cut(stream, at, share if start + share <= total else total - start, start)
            at += share
            yield name, tuple(found)


def part_count(group: int, ranks: Mapping[int, Partition]) -> int:
    """Into how many parts the parameters of a subgroup are cut."""
    return max(each.counts[min(group, len(each.counts) - 1)] for each in ranks.values())


def misfits_parted(groups: Sequence[Mapping[str, Shape]], ranks: Mapping[int, Partition]) -> Iterator[Gap]:
    """Ranks whose buffers together have another length than the parts of the parameters."""
    counts = [part_count(group, ranks) for group in range(len(groups))]
    parts = zip(counts, groups, strict=True)
    needed = sum(-(-numel(shape) // count) for count, shapes in parts for shape in shapes.values())
    for each in ranks.values():
        there = sum(buffers[WEIGHTS].count for buffers in each.buffers if WEIGHTS in buffers)
        if there < needed:
            yield _misfit(each, f"its parts of the parameters need {needed:,} elements, and it has {there:,}")


def _stream(partition: Partition, key: str) -> tuple[list[int], list[Run]]:
    """The runs of a rank, and where each begins in the stream of all of them."""
    begins, runs, at = [], [], 0
    for buffers in partition.buffers:
        run = buffers.get(key)
        if run is not None:
            begins.append(at)
            runs.append(run)
        at += run.count if run is not None else buffers[WEIGHTS].count if WEIGHTS in buffers else 0
    return begins, runs


def _cut(stream: tuple[list[int], list[Run]], at: int, count: int, start: int) -> Sequence[Piece]:
    """Elements ``at`` to ``at + count`` of a stream, which are those of the parameter from ``start`` on."""
    begins, runs = stream
    index = bisect_right(begins, at) - 1
    if index >= 0 and at + count <= begins[index] + runs[index].count:  # as it is in all but early releases
        return _part(runs[index], at - begins[index], count, start)
    found: list[Piece] = []
    for begin, run in zip(begins[max(0, index) :], runs[max(0, index) :], strict=True):
        first, last = max(at, begin), min(at + count, begin + run.count)
        if first < last:
            found += _part(run, first - begin, last - first, start + first - at)
    return found


def _part(run: Run, at: int, count: int, start: int) -> Sequence[Piece]:
    """So many elements of a run, as far as it goes."""
    inside = count if at + count <= run.count else run.count - at
    if inside <= 0:
        return ()
    offset = run.offset + at * ITEMSIZE[run.dtype]
    return (Piece(file=run.file, offset=offset, shape=(inside,), start=(start,), flat=True),)


def misfits_of_states(ranks: Mapping[int, Partition]) -> Iterator[Gap]:
    """Ranks that have a state in another layout, where others have it as the weights are."""
    usual = frozenset.intersection(*(each.odd for each in ranks.values()))
    for each in ranks.values():
        if odd := sorted(each.odd - usual):
            yield _misfit(each, f"its {odd[0]} is not as long as its weights")


def _misfit(partition: Partition, why: str) -> Gap:
    return Gap(kind="unreadable", file=partition.shard.file, why=why, rank=partition.shard.rank)
