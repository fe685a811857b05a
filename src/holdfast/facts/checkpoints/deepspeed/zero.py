"""Checkpoints of DeepSpeed's ZeRO-1, 2 and 3, of any number of ranks, without DeepSpeed.

A path is the folder of a tag (``global_step3``), or the one above it, whose file ``latest`` names the tag. The fp32
weights and the optimizer's state come out of the flat buffers of the ranks (``deepspeed_flat``), what is not trained
out of the model's own files (``deepspeed_model``). ZeRO-1 does not list its frozen weights; they are kept all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Gap
from holdfast.facts.checkpoints.deepspeed import files
from holdfast.facts.checkpoints.deepspeed import model as models
from holdfast.facts.checkpoints.deepspeed.files import Names, Place, Shard
from holdfast.facts.checkpoints.deepspeed.flat import Partition, partition_of
from holdfast.facts.checkpoints.deepspeed.joined import joined
from holdfast.facts.checkpoints.deepspeed.share import Share, share_of
from holdfast.facts.checkpoints.deepspeed.whole import believed, columns_of, missing, mixed_steps, strays
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.findings import Unknown

#: Errors of files whose values are of other types, or fewer, than DeepSpeed writes.
ODD = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)
_STAGES = {1: Format.ZERO1, 2: Format.ZERO2, 3: Format.ZERO3}
#: DeepSpeed lays its own program beside ``latest``.
_SCRIPT = "zero_to_fp32.py"
#: The folder that a universal checkpoint has.
_UNIVERSAL = "zero"


def recognises(path: Path) -> Format | None:
    """ZeRO-1, 2 or 3; None: it is no checkpoint of them. Raises CheckpointUnreadable: ``latest`` names none."""
    folder = _folder(path)
    if folder is None:
        return None
    names = files.names_in(folder)
    if not names.optims and ((folder / _UNIVERSAL).is_dir() or not (names.stage3 or _was_zero(folder, names))):
        return None
    if names.stage3:
        return Format.ZERO3
    return _STAGES[_stage(folder, names)]


def read(path: Path) -> Contents:
    """What is in it. Raises CheckpointUnreadable: nothing in it can be read."""
    folder = _folder(path)
    if folder is None:
        raise CheckpointUnreadable(path, why="it is no folder of DeepSpeed's")
    try:
        return _read(folder, files.names_in(folder))
    except ODD as error:
        why = f"what its files say does not fit together ({type(error).__name__})"
        raise CheckpointUnreadable(folder, why=why) from error


def _folder(path: Path) -> Path | None:
    """The folder of the tag."""
    if not path.is_dir():
        return None
    names = files.names_in(path)
    if names.optims or (names.models and not (path / _UNIVERSAL).is_dir()):
        return path
    try:
        return files.tag_folder(path)
    except CheckpointUnreadable:
        if (path / _SCRIPT).exists():
            raise
        return None


def _was_zero(folder: Path, names: Names) -> bool:
    """The model's file says that ranks had parts of it, and none of their files is there."""
    try:
        shards = files.read_all(folder, dict(list(names.models.items())[:1]), [])
        return any(models.groups_of(each.read.value.get("param_shapes")) for each in shards.values())
    except ODD:
        return False


def _stage(folder: Path, names: Names) -> int:
    """By the first rank's file that can be read; by DeepSpeed's configuration where an older one does not say."""
    for place, file in sorted(names.optims.items()):
        shards = files.read_all(folder, {place: file}, [])
        try:
            stages = [partition_of(shard).stage for shard in shards.values()]
        except (CheckpointUnreadable, *ODD):
            continue
        if stages:
            said = stages[0] or models.stage_of(list(shards.values()))
            return 2 if said == 2 else 1
    shards = files.read_all(folder, dict(list(names.models.items())[:1]), [])
    return 1 if models.stage_of(list(shards.values())) == 1 else 2


def _read(folder: Path, names: Names) -> Contents:
    gaps = [*strays(names)]
    shards = files.read_all(folder, names.models, gaps)
    if not shards:
        raise CheckpointUnreadable(folder, why=_no_model(names, gaps))
    ranks = _partitions(files.read_all(folder, names.optims, gaps), gaps)
    world, ranks = believed(ranks, shards, gaps)
    gaps += missing(names, shards, world)
    shares = []
    for mp in sorted({mp for mp, _ in shards}):
        mine = [each for place, each in sorted(shards.items()) if place[0] == mp]
        share = share_of(folder, mine, {rank: each for (at, rank), each in ranks.items() if at == mp}, world)
        if share is not None:
            shares.append(share)
    if not shares:
        raise CheckpointUnreadable(folder, why="none of its files says the names and shapes of the parameters")
    return _contents(folder, names, list(shards.values()), shares, [*gaps, *mixed_steps(shards, shares)], world)


def _no_model(names: Names, gaps: Sequence[Gap]) -> str:
    if names.models:
        return f"{next(iter(names.models.values()))}, which names the parameters, cannot be read: {gaps[-1].why}"
    return "the file of its model (mp_rank_00_model_states.pt), which names the parameters, is not there"


def _partitions(shards: Mapping[Place, Shard], gaps: list[Gap]) -> dict[Place, Partition]:
    found = {}
    for place, shard in shards.items():
        try:
            found[place] = partition_of(shard)
        except CheckpointUnreadable as error:
            gaps.append(gap_of(error, shard.file, shard.rank))
    return found


def _contents(
    folder: Path, names: Names, shards: Sequence[Shard], shares: Sequence[Share], gaps: Sequence[Gap], world: int
) -> Contents:
    share, torn = joined(shares, shards, columns_of(shards[0].read.value))
    steps = models.steps_of(shards)
    return Contents(
        format=Format.ZERO3 if names.stage3 else _STAGES[_stage(folder, names)], root=str(folder),
        tensors=share.tensors, halves=share.halves, ties=share.ties, frozen=share.frozen, buffers=share.buffers,
        optimizer=share.optimizer, world_size=world * len(shares), writer=models.writer_of(shards),
        step=max(steps, key=lambda step: len(steps[step])) if steps else Unknown("no file of it says"),
        values={**models.values_of(shards[0].read.value), **share.values}, files=names.sizes,
        notes=(*share.notes, *_notes(names)), gaps=(*gaps, *share.gaps, *torn),
    )  # fmt: skip


def _notes(names: Names) -> list[str]:
    notes = []
    if names.experts:
        notes.append(f"{len(names.experts):,} files of experts are not read: what is said is without them.")
    if names.layers:
        notes.append(
            f"{len(names.layers):,} files of pipeline stages' 16-bit weights are not read: frozen weights and buffers "
            "are in them alone."
        )
    return notes
