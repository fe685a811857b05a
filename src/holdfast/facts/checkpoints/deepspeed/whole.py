"""What of a DeepSpeed checkpoint is not there, or is of another save into the same folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.facts.checkpoints.contents import Gap
from holdfast.facts.checkpoints.deepspeed.files import MOST_RANKS, Names, Place, Shard
from holdfast.facts.checkpoints.deepspeed.flat import Partition
from holdfast.facts.checkpoints.deepspeed.model import steps_of
from holdfast.facts.checkpoints.deepspeed.share import Share

#: Gaps of one kind that are told one by one.
_MOST_GAPS = 64


def strays(names: Names) -> Iterator[Gap]:
    """Files that another stage, or another dtype, left under the same tag."""
    for file in names.strays:
        yield Gap(
            kind="mixed", file=file, why="it is of another save into this folder: the others have another kind of name"
        )


def believed(
    found: Mapping[Place, Partition], shards: Mapping[Place, Shard], gaps: list[Gap]
) -> tuple[int, dict[Place, Partition]]:
    """How many data-parallel ranks wrote it, and the partitions that fit: those of other saves become gaps."""
    kinds = Counter((max(each.counts), len(each.buffers)) for each in found.values())
    if not kinds:
        return max(_said(shards), 1), {}
    kept = max(kinds, key=lambda kind: (kinds[kind], kind))
    world = kept[0]
    dtypes = Counter(pair for each in found.values() for pair in _dtypes(each))
    usual = dict(pair for pair, _ in reversed(dtypes.most_common()))  # of each key the one that most ranks have
    fitting = {}
    for place, each in found.items():
        if (max(each.counts), len(each.buffers)) != kept:
            gaps.append(_other(each.shard, f"the others are of {world:,} ranks and {kept[1]:,} groups"))
        elif odd := [key for key, dtype in _dtypes(each) if usual[key] != dtype]:
            gaps.append(_other(each.shard, f"its {odd[0]} is of another dtype than the others'"))
        elif place[1] >= world:
            gaps.append(_other(each.shard, f"{world:,} ranks wrote the others"))
        else:
            fitting[place] = each
    return world, fitting


def _dtypes(partition: Partition) -> set[tuple[str, str]]:
    """Those of its buffers by state, where there is something in them."""
    return {(key, run.dtype) for buffers in partition.buffers for key, run in buffers.items() if run.count}


def _said(shards: Mapping[Place, Shard]) -> int:
    said = next(iter(shards.values())).read.value.get("dp_world_size")
    return said if isinstance(said, int) and said <= MOST_RANKS else 1


def missing(names: Names, shards: Mapping[Place, Shard], world: int) -> Iterator[Gap]:
    """The ranks whose files are not there, by the number of ranks that wrote it."""
    columns = sorted(
        {mp for mp, _ in (*names.models, *names.optims)}
        | set(range(columns_of(next(iter(shards.values())).read.value)))
    )
    example = next(iter(names.optims.values()), "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    yield from _absent(names.optims, example, columns, range(world), "part of the weights and optimizer state")
    example = next(iter(names.models.values()))
    ranks = range(world) if names.stage3 else range(-1, 0)
    yield from _absent(names.models, example, columns, ranks, "part of the model")


def columns_of(state: Mapping[Any, Any]) -> int:
    """Tensor- and pipeline-parallel ranks that wrote it, by one of the model's files."""
    said = state.get("checkpoint_parallel_dimensions")
    keys = ("pp_degree", "tp_degree")
    degrees = [said.get(key, 1) for key in keys] if isinstance(said, Mapping) else [state.get("mp_world_size", 1)]
    count = 1
    for degree in degrees:
        count *= degree if isinstance(degree, int) and 0 < degree <= MOST_RANKS else 1
    return min(count, MOST_RANKS)


def _absent(there: Mapping[Place, str], example: str, columns: Sequence[int], ranks: range, what: str) -> Iterator[Gap]:
    absent = [(mp, rank) for mp in columns for rank in ranks if (mp, rank) not in there]
    for mp, rank in absent[:_MOST_GAPS]:
        name = re.sub(r"mp_rank_\d+", f"mp_rank_{mp:02d}", re.sub(r"pp_rank_\d+", f"pp_rank_{rank}", example))
        whose = f"rank {rank}'s" if rank >= 0 else f"the tensor-parallel rank {mp}'s"
        yield Gap(kind="missing", file=name, why=f"{whose} {what} is not there", rank=rank if rank >= 0 else None)
    if len(absent) > _MOST_GAPS:
        why = f"{len(absent) - _MOST_GAPS:,} more ranks' {what} are not there"
        yield Gap(kind="missing", file="", why=why)


def mixed_steps(shards: Mapping[Place, Shard], shares: Sequence[Share]) -> Iterator[Gap]:
    """Files of one checkpoint that are of different steps."""
    found = steps_of(list(shards.values()))
    yield from _minority(found, "it is of step {step:,}, and the others are of step {usual:,}")
    for share in shares:
        yield from _minority(share.steps, "its optimizer is at step {step:,}, and the others' at step {usual:,}")


def _minority(found: Mapping[int, Sequence[Shard]], why: str) -> Iterator[Gap]:
    if len(found) < 2:
        return
    usual = max(found, key=lambda step: (len(found[step]), step))
    for step, shards in sorted(found.items()):
        for shard in shards if step != usual else ():
            yield _gap(shard, why.format(step=step, usual=usual))


def _other(shard: Shard, why: str) -> Gap:
    return _gap(shard, f"it is of another save into this folder: {why}")


def _gap(shard: Shard, why: str) -> Gap:
    return Gap(kind="mixed", file=shard.file, why=why, rank=shard.rank)
