"""Detects files of a DeepSpeed checkpoint that are missing or from another save."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.ckpt.contents import FileProblem
from holdfast.ckpt.formats.deepspeed.data_parallel import MergedRanks
from holdfast.ckpt.formats.deepspeed.files import MAX_RANKS, RankFile, RankPosition, TagFiles
from holdfast.ckpt.formats.deepspeed.flat import Partition
from holdfast.ckpt.formats.deepspeed.model import files_by_step

#: Problems of one kind that are listed individually.
_MAX_PROBLEMS = 64


def stray_files(names: TagFiles) -> Iterator[FileProblem]:
    """Yield files that another stage or dtype left under the same tag."""
    for file in names.strays:
        yield FileProblem(
            kind="mixed",
            file=file,
            why="from another save into this folder: its name differs in kind from the others",
        )


def consistent_partitions(
    partitions: Mapping[RankPosition, Partition],
    rank_files: Mapping[RankPosition, RankFile],
    problems: list[FileProblem],
) -> tuple[int, dict[RankPosition, Partition]]:
    """Return the number of data-parallel ranks, and the partitions consistent with it.

    Partitions from other saves become problems.
    """
    kinds = Counter(
        (max(partition.counts), len(partition.buffers)) for partition in partitions.values()
    )
    if not kinds:
        return max(_declared_world_size(rank_files), 1), {}
    usual_kind = max(kinds, key=lambda kind: (kinds[kind], kind))
    world = usual_kind[0]
    dtypes = Counter(
        pair for partition in partitions.values() for pair in _buffer_dtypes(partition)
    )
    usual = dict(
        pair for pair, _ in reversed(dtypes.most_common())
    )  # for each key, the dtype that most ranks have
    fitting = {}
    for position, partition in partitions.items():
        if (max(partition.counts), len(partition.buffers)) != usual_kind:
            problems.append(
                _other_save(
                    partition.rank_file,
                    f"the others have {world:,} ranks and {usual_kind[1]:,} parameter groups",
                )
            )
        elif odd := [key for key, dtype in _buffer_dtypes(partition) if usual[key] != dtype]:
            problems.append(
                _other_save(
                    partition.rank_file, f"its {odd[0]} has a different dtype than the others'"
                )
            )
        elif position[1] >= world:
            problems.append(_other_save(partition.rank_file, f"{world:,} ranks wrote the others"))
        else:
            fitting[position] = partition
    return world, fitting


def _buffer_dtypes(partition: Partition) -> set[tuple[str, str]]:
    """Return (state, dtype) of the partition's non-empty buffers."""
    return {
        (key, run.dtype)
        for buffers in partition.buffers
        for key, run in buffers.items()
        if run.count
    }


def _declared_world_size(rank_files: Mapping[RankPosition, RankFile]) -> int:
    declared = next(iter(rank_files.values())).read.value.get("dp_world_size")
    return declared if isinstance(declared, int) and declared <= MAX_RANKS else 1


def missing_files(
    names: TagFiles, rank_files: Mapping[RankPosition, RankFile], world: int
) -> Iterator[FileProblem]:
    """Yield the files that are missing for a checkpoint of ``world`` ranks."""
    columns = sorted(
        {mp for mp, _ in (*names.models, *names.optims)}
        | set(range(model_parallel_size(next(iter(rank_files.values())).read.value)))
    )
    example = next(iter(names.optims.values()), "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    yield from _absent_files(
        names.optims, example, columns, range(world), "shard of the weights and optimizer state"
    )
    example = next(iter(names.models.values()))
    ranks = range(world) if names.stage3 else range(-1, 0)
    yield from _absent_files(names.models, example, columns, ranks, "shard of the model")


def model_parallel_size(state: Mapping[Any, Any]) -> int:
    """Return the number of tensor- and pipeline-parallel ranks from a model file."""
    declared = state.get("checkpoint_parallel_dimensions")
    keys = ("pp_degree", "tp_degree")
    degrees = (
        [declared.get(key, 1) for key in keys]
        if isinstance(declared, Mapping)
        else [state.get("mp_world_size", 1)]
    )
    count = 1
    for degree in degrees:
        count *= degree if isinstance(degree, int) and 0 < degree <= MAX_RANKS else 1
    return min(count, MAX_RANKS)


def _absent_files(
    there: Mapping[RankPosition, str], example: str, columns: Sequence[int], ranks: range, what: str
) -> Iterator[FileProblem]:
    absent = [(mp, rank) for mp in columns for rank in ranks if (mp, rank) not in there]
    for mp, rank in absent[:_MAX_PROBLEMS]:
        name = re.sub(
            r"mp_rank_\d+", f"mp_rank_{mp:02d}", re.sub(r"pp_rank_\d+", f"pp_rank_{rank}", example)
        )
        owner = f"rank {rank}" if rank >= 0 else f"tensor-parallel rank {mp}"
        yield FileProblem(
            kind="missing",
            file=name,
            why=f"{what} of {owner} is missing",
            rank=rank if rank >= 0 else None,
        )
    if len(absent) > _MAX_PROBLEMS:
        why = f"{len(absent) - _MAX_PROBLEMS:,} more files ({what}) are missing"
        yield FileProblem(kind="missing", file="", why=why)


def mixed_steps(
    rank_files: Mapping[RankPosition, RankFile], merged_ranks: Sequence[MergedRanks]
) -> Iterator[FileProblem]:
    """Yield files of one checkpoint that are at different steps."""
    files_at_step = files_by_step(list(rank_files.values()))
    yield from _minority(files_at_step, "it is at step {step:,}, the others are at step {usual:,}")
    for merged in merged_ranks:
        yield from _minority(
            merged.steps, "its optimizer is at step {step:,}, the others' at step {usual:,}"
        )


def _minority(files_at_step: Mapping[int, Sequence[RankFile]], why: str) -> Iterator[FileProblem]:
    if len(files_at_step) < 2:
        return
    usual = max(files_at_step, key=lambda step: (len(files_at_step[step]), step))
    for step, rank_files in sorted(files_at_step.items()):
        for rank_file in rank_files if step != usual else ():
            yield _mixed_problem(rank_file, why.format(step=step, usual=usual))


def _other_save(rank_file: RankFile, why: str) -> FileProblem:
    return _mixed_problem(rank_file, f"from another save into this folder: {why}")


def _mixed_problem(rank_file: RankFile, why: str) -> FileProblem:
    return FileProblem(kind="mixed", file=rank_file.file, why=why, rank=rank_file.rank)
