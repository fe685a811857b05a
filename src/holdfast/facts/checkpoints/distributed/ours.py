"""holdfast's own checkpoints: torch.distributed.checkpoint, a manifest of hashes, and what each rank has for itself.

The manifest says step and ranks; ``rank-00000.state`` the optimizer's groups, the scheduler, the configuration, and
what else had a state (``runtime.checkpoint.state``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Gap, Group, Optimizer
from holdfast.facts.checkpoints.distributed import dcp
from holdfast.facts.checkpoints.distributed.blobs import as_plain, is_bounded
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.state_dicts.sections import Sections
from holdfast.manifest import Manifest

WRITER = "holdfast"


def recognises(path: Path) -> Format | None:
    """A manifest beside an index of torch, or without one where the model was an engine of DeepSpeed."""
    if not (path / manifest.FILE).is_file():
        return None
    try:
        with (path / manifest.FILE).open("rb") as stream:
            begin = stream.read(256)
    except OSError:
        return None
    return Format.HOLDFAST if b"holdfast/checkpoint/" in begin else None


def read(path: Path) -> Contents:
    """What is in the checkpoint.

    Raises:
        CheckpointUnreadable: its manifest or its index is none, or was changed.
        CheckpointVersion: a newer holdfast wrote it.
    """
    proof = manifest.read(path)
    found = dcp.Folder(path)
    found.gaps = [*_damages(path, proof), *(gap for gap in found.gaps if gap.file not in _named(proof))]
    parts = found.sections()
    own = _own(path, found)
    parts.values.update(_values(own))
    parts.values.update({key: value for key, value in proof.values.items() if key not in parts.values})
    return found.contents(
        Format.HOLDFAST, parts, _optimizer(parts, own), step=proof.step, world_size=proof.ranks,
        writer=f"{WRITER}, torch {proof.torch}" if proof.torch else WRITER,
    )  # fmt: skip


def _damages(path: Path, proof: Manifest) -> Iterator[Gap]:
    """Files that are not there, or have another size; hashes are ``verify``'s."""
    for damage in manifest.damages(path, proof, contents=False):
        yield Gap(kind=damage.kind, file=damage.path, why=damage.why, rank=dcp.rank_of(damage.path))


def _named(proof: Manifest) -> set[str]:
    return {entry.path for entry in proof.files}


def _own(path: Path, found: dcp.Folder) -> Mapping[str, Any]:
    """What rank 0 has for itself; empty, with a gap, where it cannot be read."""
    name = "rank-00000.state"
    if name not in found.files:
        return {}
    try:
        value = torch_files.read(path / name).value
    except CheckpointUnreadable as error:
        found.gaps.append(gap_of(error, name, rank=0))
        return {}
    return value if isinstance(value, Mapping) and is_bounded(value) else {}


def _values(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The states of scheduler, scaler and whatever else the user gave, and the configuration, by their paths."""
    states = own.get("stateful")
    for name, state in states.items() if isinstance(states, Mapping) else ():
        yield from _flat(str(name).removeprefix("."), state)
    if own.get("config") is not None:
        yield from _flat("config", own["config"])


def _flat(path: str, value: Any, depth: int = 30) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and depth:
        for key, each in value.items():
            yield from _flat(f"{path}.{key}", each, depth - 1)
    else:
        yield path, as_plain(value)


def _optimizer(parts: Sections, own: Mapping[str, Any]) -> Optimizer | None:
    """The states, and the groups of all optimizers in their order."""
    every = own.get("groups")
    groups = [
        Group(params=tuple(map(str, group["params"])), options=as_plain(_options(group)))
        for several in (every.values() if isinstance(every, Mapping) else ())
        for group in several
        if isinstance(group, Mapping) and isinstance(group.get("params"), list)
    ]
    found = parts.optimizer() or (Optimizer(tensors={}, numbers={}, groups=()) if groups else None)
    return msgspec.structs.replace(found, groups=tuple(groups)) if found is not None else None


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
