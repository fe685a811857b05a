"""Reads holdfast checkpoints: DCP, a manifest of hashes, and per-rank state.

The manifest holds step and rank count; ``rank-00000.state`` the optimizer's groups, scheduler,
configuration and other states (``training.checkpoint.state``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    OptimizerState,
    ParamGroup,
)
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.distributed import dcp
from holdfast.ckpt.formats.distributed.blobs import as_plain, is_bounded
from holdfast.ckpt.state_dicts.sections import Sections
from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest
from holdfast.core.errors import CheckpointUnreadable

WRITER = "holdfast"


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize a manifest that lists the state of rank 0; others seal a foreign checkpoint.

    Without torch's index, the model was a DeepSpeed engine.
    """
    if not (path / checkpoint_manifest.FILE).is_file():
        return None
    try:
        with (path / checkpoint_manifest.FILE).open("rb") as stream:
            data = stream.read(checkpoint_manifest.MAX_BYTES)
    except OSError:
        return None
    is_own = b"holdfast/checkpoint/" in data[:256] and b"rank-00000.state" in data
    return CheckpointFormat.HOLDFAST if is_own else None


def read_contents(path: Path) -> CheckpointContents:
    """Return the contents of the checkpoint.

    Raises:
        CheckpointUnreadable: manifest or index is missing or damaged.
        CheckpointVersion: a newer holdfast wrote it.
    """
    manifest = checkpoint_manifest.read_manifest(path)
    folder = dcp.DcpFolder(path)
    folder.problems = [
        *_find_damage(path, manifest),
        *(problem for problem in folder.problems if problem.file not in _manifest_paths(manifest)),
    ]
    sections = folder.sections()
    rank_state = _read_rank_state(path, folder)
    sections.values.update(_state_values(rank_state))
    sections.values.update(
        {key: value for key, value in manifest.values.items() if key not in sections.values}
    )
    return folder.contents(
        CheckpointFormat.HOLDFAST,
        sections,
        _optimizer(sections, rank_state),
        step=manifest.step,
        world_size=manifest.ranks,
        writer=f"{WRITER}, torch {manifest.torch}" if manifest.torch else WRITER,
    )


def _find_damage(path: Path, manifest: Manifest) -> Iterator[FileProblem]:
    """Yield missing files and files of a different size; ``verify`` checks the hashes."""
    for damage in checkpoint_manifest.find_damage(path, manifest, contents=False):
        yield FileProblem(
            kind=damage.kind, file=damage.path, why=damage.why, rank=dcp.rank_in_name(damage.path)
        )


def _manifest_paths(manifest: Manifest) -> set[str]:
    return {entry.path for entry in manifest.files}


def _read_rank_state(path: Path, folder: dcp.DcpFolder) -> Mapping[str, Any]:
    """Return the state of rank 0; empty, with a problem, if it cannot be read."""
    name = "rank-00000.state"
    if name not in folder.files:
        return {}
    try:
        value = torch_files.read_torch_file(path / name).value
    except CheckpointUnreadable as error:
        folder.problems.append(problem_of(error, name, rank=0))
        return {}
    return value if isinstance(value, Mapping) and is_bounded(value) else {}


def _state_values(rank_state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield scheduler, scaler and other states, and the configuration, by path."""
    states = rank_state.get("stateful")
    for name, state in states.items() if isinstance(states, Mapping) else ():
        yield from _flatten(str(name).removeprefix("."), state)
    if rank_state.get("config") is not None:
        yield from _flatten("config", rank_state["config"])


def _flatten(path: str, value: Any, depth: int = 30) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and depth:
        for key, item in value.items():
            yield from _flatten(f"{path}.{key}", item, depth - 1)
    else:
        yield path, as_plain(value)


def _optimizer(sections: Sections, rank_state: Mapping[str, Any]) -> OptimizerState | None:
    """Return the states with the groups of all optimizers in order."""
    groups_by_optimizer = rank_state.get("groups")
    groups = [
        ParamGroup(params=tuple(map(str, group["params"])), options=as_plain(_options(group)))
        for optimizer_groups in (
            groups_by_optimizer.values() if isinstance(groups_by_optimizer, Mapping) else ()
        )
        for group in optimizer_groups
        if isinstance(group, Mapping) and isinstance(group.get("params"), list)
    ]
    optimizer = sections.optimizer() or (
        OptimizerState(tensors={}, numbers={}, groups=()) if groups else None
    )
    return (
        msgspec.structs.replace(optimizer, groups=tuple(groups)) if optimizer is not None else None
    )


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
