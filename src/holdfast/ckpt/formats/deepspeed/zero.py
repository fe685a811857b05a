"""Reads DeepSpeed ZeRO-1, 2 and 3 checkpoints of any number of ranks, without DeepSpeed.

A path is a tag folder (``global_step3``), or its parent with a file ``latest`` that names the tag.
fp32 weights and optimizer state come from the ranks' flat buffers (``flat``), untrained tensors
from the model files (``model``). ZeRO-1 does not list frozen weights; they are read all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat, FileProblem
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.deepspeed import files
from holdfast.ckpt.formats.deepspeed import model as models
from holdfast.ckpt.formats.deepspeed.completeness import (
    consistent_partitions,
    missing_files,
    mixed_steps,
    model_parallel_size,
    stray_files,
)
from holdfast.ckpt.formats.deepspeed.data_parallel import MergedRanks, merge_data_parallel
from holdfast.ckpt.formats.deepspeed.files import RankFile, RankPosition, TagFiles
from holdfast.ckpt.formats.deepspeed.flat import Partition, parse_partition
from holdfast.ckpt.formats.deepspeed.model_parallel import merge_model_parallel
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

#: Errors raised for files with other or fewer values than DeepSpeed writes.
MALFORMED_ERRORS = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)
_STAGES = {1: CheckpointFormat.ZERO1, 2: CheckpointFormat.ZERO2, 3: CheckpointFormat.ZERO3}
#: DeepSpeed's script next to ``latest``.
_SCRIPT = "zero_to_fp32.py"
#: The subfolder of a universal checkpoint.
_UNIVERSAL = "zero"


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize ZeRO-1, 2 or 3. Raises CheckpointUnreadable: ``latest`` is invalid."""
    folder = _folder(path)
    if folder is None:
        return None
    names = files.list_tag_files(folder)
    if not names.optims and (
        (folder / _UNIVERSAL).is_dir() or not (names.stage3 or _was_zero(folder, names))
    ):
        return None
    if names.stage3:
        return CheckpointFormat.ZERO3
    return _STAGES[_stage(folder, names)]


def read_contents(path: Path) -> CheckpointContents:
    """Return the contents. Raises CheckpointUnreadable: nothing can be read."""
    folder = _folder(path)
    if folder is None:
        raise CheckpointUnreadable(path, why="not a DeepSpeed folder")
    try:
        return _read(folder, files.list_tag_files(folder))
    except MALFORMED_ERRORS as error:
        why = f"its files are inconsistent ({type(error).__name__})"
        raise CheckpointUnreadable(folder, why=why) from error


def _folder(path: Path) -> Path | None:
    """Return the tag folder."""
    if not path.is_dir():
        return None
    names = files.list_tag_files(path)
    if names.optims or (names.models and not (path / _UNIVERSAL).is_dir()):
        return path
    try:
        return files.tag_folder(path)
    except CheckpointUnreadable:
        if (path / _SCRIPT).exists():
            raise
        return None


def _was_zero(folder: Path, names: TagFiles) -> bool:
    """Return whether the model file implies rank files although none exists."""
    try:
        rank_files = files.read_rank_files(folder, dict(list(names.models.items())[:1]), [])
        return any(
            models.parse_param_shapes(rank_file.read.value.get("param_shapes"))
            for rank_file in rank_files.values()
        )
    except MALFORMED_ERRORS:
        return False


def _stage(folder: Path, names: TagFiles) -> int:
    """Return the stage from the first readable rank file, else from the configuration."""
    for position, file in sorted(names.optims.items()):
        rank_files = files.read_rank_files(folder, {position: file}, [])
        try:
            stages = [parse_partition(rank_file).stage for rank_file in rank_files.values()]
        except (CheckpointUnreadable, *MALFORMED_ERRORS):
            continue
        if stages:
            stage = stages[0] or models.configured_stage(list(rank_files.values()))
            return 2 if stage == 2 else 1
    rank_files = files.read_rank_files(folder, dict(list(names.models.items())[:1]), [])
    return 1 if models.configured_stage(list(rank_files.values())) == 1 else 2


def _read(folder: Path, names: TagFiles) -> CheckpointContents:
    problems = [*stray_files(names)]
    rank_files = files.read_rank_files(folder, names.models, problems)
    if not rank_files:
        raise CheckpointUnreadable(folder, why=_no_model_text(names, problems))
    ranks = _partitions(files.read_rank_files(folder, names.optims, problems), problems)
    world, ranks = consistent_partitions(ranks, rank_files, problems)
    problems += missing_files(names, rank_files, world)
    merged_ranks = []
    for mp in sorted({mp for mp, _ in rank_files}):
        own_files = [item for position, item in sorted(rank_files.items()) if position[0] == mp]
        merged = merge_data_parallel(
            folder, own_files, {rank: item for (at, rank), item in ranks.items() if at == mp}, world
        )
        if merged is not None:
            merged_ranks.append(merged)
    if not merged_ranks:
        raise CheckpointUnreadable(
            folder, why="none of its files contains the names and shapes of the parameters"
        )
    return _contents(
        folder,
        names,
        list(rank_files.values()),
        merged_ranks,
        [*problems, *mixed_steps(rank_files, merged_ranks)],
        world,
    )


def _no_model_text(names: TagFiles, problems: Sequence[FileProblem]) -> str:
    if names.models:
        model_file = next(iter(names.models.values()))
        return f"{model_file}, which names the parameters, cannot be read: {problems[-1].why}"
    return "the model file (mp_rank_00_model_states.pt), which names the parameters, is missing"


def _partitions(
    rank_files: Mapping[RankPosition, RankFile], problems: list[FileProblem]
) -> dict[RankPosition, Partition]:
    partitions = {}
    for position, rank_file in rank_files.items():
        try:
            partitions[position] = parse_partition(rank_file)
        except CheckpointUnreadable as error:
            problems.append(problem_of(error, rank_file.file, rank_file.rank))
    return partitions


def _contents(
    folder: Path,
    names: TagFiles,
    rank_files: Sequence[RankFile],
    merged_ranks: Sequence[MergedRanks],
    problems: Sequence[FileProblem],
    world: int,
) -> CheckpointContents:
    merged, unmerged = merge_model_parallel(
        merged_ranks, rank_files, model_parallel_size(rank_files[0].read.value)
    )
    steps = models.files_by_step(rank_files)
    return CheckpointContents(
        format=CheckpointFormat.ZERO3 if names.stage3 else _STAGES[_stage(folder, names)],
        root=str(folder),
        tensors=merged.tensors,
        halves=merged.halves,
        ties=merged.ties,
        frozen=merged.frozen,
        buffers=merged.buffers,
        optimizer=merged.optimizer,
        world_size=world * len(merged_ranks),
        writer=models.writer_version(rank_files),
        step=max(steps, key=lambda step: len(steps[step]))
        if steps
        else Unknown("not recorded in any file"),
        values={**models.user_values(rank_files[0].read.value), **merged.values},
        files=names.sizes,
        notes=(*merged.notes, *_notes(names)),
        problems=(*problems, *merged.problems, *unmerged),
    )


def _notes(names: TagFiles) -> list[str]:
    notes = []
    if names.experts:
        notes.append(f"{len(names.experts):,} expert files are not read; experts are not included")
    if names.layers:
        notes.append(
            f"{len(names.layers):,} files with 16-bit weights of pipeline stages are not read; "
            "frozen weights and buffers are only in them"
        )
    return notes
