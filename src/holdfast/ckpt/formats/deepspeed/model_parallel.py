"""Merges tensor- and pipeline-parallel ranks of a DeepSpeed checkpoint.

A parameter on only one rank is complete. How the shards of others join is recorded only if the
program gave its model ``universal_checkpoint_info``, patterns of names
(deepspeed/checkpoint/constants.py) that mean, as in ds_to_universal.py: shards are concatenated
along the first dimension, unless a pattern says the second (row parallelism) or that they are
replicated. Without it, shards are not merged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    ITEMSIZE,
    FileProblem,
    OptimizerState,
    ParamGroup,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.formats.deepspeed.data_parallel import MergedRanks
from holdfast.ckpt.formats.deepspeed.files import RankFile

_INFO = "universal_checkpoint_info"
_REPLICATED = ("tp_replicated_parameter_patterns", "pipeline_replicated_parameter_patterns")
_ROW_PARALLEL = ("parameter_with_row_parallelism_patterns",)
#: Kinds of shards that are not merged here.
_UNSUPPORTED = (
    "parameter_to_average_patterns",
    "parameter_with_2_sub_params_cat_dim_0",
    "parameter_with_sub_params",
)
#: Maximum pattern length: patterns are untrusted, and a regular expression may never finish.
_MAX_PATTERN = 200

#: How the shards of a name join: along a dimension, replicated (-1), or unknown (None).
JoinRule = Callable[[str], int | None]


def merge_model_parallel(
    ranks: Sequence[MergedRanks], rank_files: Sequence[RankFile], count: int
) -> tuple[MergedRanks, list[FileProblem]]:
    """Merge the ranks, and report what cannot be merged; ``count`` ranks wrote it."""
    if len(ranks) == count == 1:
        return ranks[0], []
    rule = _join_rule(rank_files[0].read.value, missing=len(ranks) < count)
    tensors = _join_tensors([rank.tensors for rank in ranks], rule)
    joined = {name: item for name, item in tensors.items() if item is not None}
    lost = [name for name, item in tensors.items() if item is None]
    halves = _join_tensors([rank.halves for rank in ranks], rule)
    merged = msgspec.structs.replace(
        ranks[0],
        tensors=joined,
        halves={name: item for name, item in halves.items() if item is not None},
        ties={k: v for rank in ranks for k, v in rank.ties.items() if v in joined},
        frozen=frozenset(name for rank in ranks for name in rank.frozen if name in joined),
        buffers=frozenset(name for rank in ranks for name in rank.buffers if name in joined),
        optimizer=_join_optimizers(ranks, rule, joined),
        problems=tuple(problem for rank in ranks for problem in rank.problems),
    )
    return merged, [_unjoined_problem(rank_files[0], lost, len(ranks))] if lost else []


def _join_rule(state: Mapping[str, Any], *, missing: bool) -> JoinRule:
    """Return the rule from the program's patterns.

    If a rank is missing, only replicated parameters are known.
    """
    info = state.get(_INFO)
    degrees = state.get("checkpoint_parallel_dimensions")
    if isinstance(degrees, Mapping) and degrees.get("tp_degree") == 1:
        return lambda _: -1  # pipeline stages: a parameter on two stages is tied
    if not isinstance(info, Mapping):
        return lambda _: None
    equal, second, other = (
        _matcher(info, keys) for keys in (_REPLICATED, _ROW_PARALLEL, _UNSUPPORTED)
    )

    def rule(name: str) -> int | None:
        if other(name):
            return None
        return -1 if equal(name) else None if missing else 1 if second(name) else 0

    return rule


def _matcher(info: Mapping[str, Any], keys: Sequence[str]) -> Callable[[str], bool]:
    patterns = [item for key in keys for item in info.get(key) or ()]
    simple = [
        pattern
        for pattern in patterns
        if isinstance(pattern, str) and len(pattern) <= _MAX_PATTERN and not _NESTED.search(pattern)
    ]
    if len(simple) < len(patterns):
        return lambda _: True
    compiled = [re.compile(item) for item in simple]
    return lambda name: any(item.match(name) for item in compiled)


#: A nested repetition: such a pattern may never finish.
_NESTED = re.compile(r"[+*}]\)[+*{]")


def _join_tensors(
    tensors_by_rank: Sequence[Mapping[str, Tensor]], rule: JoinRule
) -> dict[str, Tensor | None]:
    """Join every tensor; None if its shards cannot be merged."""
    parts: dict[str, list[Tensor]] = {}
    for item in tensors_by_rank:
        for name, tensor in item.items():
            parts.setdefault(name, []).append(tensor)
    multiple = len(tensors_by_rank) > 1  # a parameter on only one of several ranks is complete
    return {
        name: item[0] if multiple and len(item) == 1 else _join_tensor(item, rule(name))
        for name, item in parts.items()
    }


def _join_tensor(parts: Sequence[Tensor], dim: int | None) -> Tensor | None:
    """Join shards along ``dim``."""
    first = parts[0]
    if dim is None or any(
        item.dtype != first.dtype or len(item.shape) != len(first.shape) for item in parts
    ):
        return None
    if dim == -1 or not first.shape:
        if any(item.shape != first.shape for item in parts):
            return None
        return msgspec.structs.replace(
            first, shards=tuple(shard for item in parts for shard in item.shards)
        )
    dim = min(dim, len(first.shape) - 1)
    full_shape = tuple(
        sum(item.shape[dim] for item in parts) if at == dim else n
        for at, n in enumerate(first.shape)
    )
    if any(_without(item.shape, dim) != _without(first.shape, dim) for item in parts):
        return None
    shards: list[TensorShard] = []
    at = 0
    for part in parts:
        for shard in part.shards:
            shards += _move_shard(shard, part, full_shape, dim, at)
        at += part.shape[dim]
    return Tensor(name=first.name, dtype=first.dtype, shape=full_shape, shards=tuple(shards))


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _move_shard(
    shard: TensorShard, part: Tensor, full_shape: tuple[int, ...], dim: int, at: int
) -> Iterator[TensorShard]:
    """Yield a shard of a part as shards of the full tensor; the part starts at index ``at``."""
    if not shard.flat:
        start = tuple(n + at if axis == dim else n for axis, n in enumerate(shard.start))
        yield msgspec.structs.replace(shard, start=start)
    elif dim == 0:
        yield msgspec.structs.replace(
            shard, start=(shard.start[0] + at * math.prod(part.shape[1:]),)
        )
    else:
        yield from _split_rows(shard, part, full_shape, at)


def _split_rows(
    shard: TensorShard, part: Tensor, full_shape: tuple[int, ...], at: int
) -> Iterator[TensorShard]:
    """Split a flat shard by rows: full rows become one box, the rest flat shards."""
    inner = math.prod(part.shape[2:])
    row, whole_row, itemsize = part.shape[1] * inner, full_shape[1] * inner, ITEMSIZE[part.dtype]
    first, stop = shard.start[0], shard.start[0] + shard.shape[0]
    low, high = -(-first // row), stop // row
    for begin, end in ((first, low * row), (high * row, stop)) if low <= high else ((first, stop),):
        if begin < end:
            yield msgspec.structs.replace(
                shard,
                offset=shard.offset + (begin - first) * itemsize,
                shape=(end - begin,),
                start=(begin // row * whole_row + at * inner + begin % row,),
            )
    if low < high:
        yield TensorShard(
            file=shard.file,
            offset=shard.offset + (low * row - first) * itemsize,
            shape=(high - low, *part.shape[1:]),
            start=(low, at, *(0 for _ in part.shape[2:])),
        )


def _join_optimizers(
    ranks: Sequence[MergedRanks], rule: JoinRule, joined: Mapping[str, Tensor]
) -> OptimizerState | None:
    """Return the optimizer state of the parameters that could be merged."""
    optimizers = [rank.optimizer for rank in ranks if rank.optimizer is not None]
    if not optimizers:
        return None
    keys = {
        key for optimizer in optimizers for states in optimizer.tensors.values() for key in states
    }
    by_key = {
        key: _join_tensors([_state_tensors(item, key) for item in optimizers], rule)
        for key in sorted(keys)
    }
    tensors: dict[str, dict[str, Tensor]] = {}
    for key, by_name in by_key.items():
        for name, tensor in by_name.items():
            if tensor is not None and name in joined:
                tensors.setdefault(name, {})[key] = tensor
    numbers = {
        name: values
        for item in optimizers
        for name, values in item.numbers.items()
        if name in joined
    }
    return OptimizerState(tensors=tensors, numbers=numbers, groups=_join_groups(optimizers, joined))


def _state_tensors(optimizer: OptimizerState, key: str) -> dict[str, Tensor]:
    return {name: states[key] for name, states in optimizer.tensors.items() if key in states}


def _join_groups(
    optimizers: Sequence[OptimizerState], joined: Mapping[str, Tensor]
) -> tuple[ParamGroup, ...]:
    """Join group by group; pipeline stages have different parameters in each."""
    columns = zip_longest(*(optimizer.groups for optimizer in optimizers))
    groups_joined = []
    for column in columns:
        groups = [group for group in column if group is not None]
        params = dict.fromkeys(name for group in groups for name in group.params if name in joined)
        groups_joined.append(ParamGroup(params=tuple(params), options=groups[0].options))
    return tuple(groups_joined)


def _unjoined_problem(rank_file: RankFile, lost: Sequence[str], count: int) -> FileProblem:
    some = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
    why = (
        f"{len(lost):,} parameters ({some}) are sharded over {count:,} tensor-parallel ranks, "
        f"but the checkpoint does not record how to merge them"
    )
    return FileProblem(kind="unreadable", file=rank_file.file, why=why)
