"""Checkpoints of Megatron-LM's ``torch_dist``: torch.distributed.checkpoint, plain values apart, all keys on one level.

    metadata.json   {"sharded_backend": "torch_dist", ...}
    common.pt       iteration, arguments, what every rank has alike: the optimizer's groups, the scheduler
    .metadata, …    optimizer.state.exp_avg.<name>, optimizer.state.fp32_param.<name>, <name>

The keys are those of megatron/core/optimizer (``sharded_param_state_fs_model_space``) and of dist_checkpointing. The
32-bit weights stand with the optimizer there; the model's own are then their copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Group, Optimizer, Tensor
from holdfast.facts.checkpoints.distributed import dcp
from holdfast.facts.checkpoints.distributed.blobs import as_plain, is_bounded
from holdfast.facts.checkpoints.distributed.index import Entry
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.state_dicts.sections import Sections

MARK, COMMON = "metadata.json", "common.pt"
_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<key>\w+)\.(?P<name>.+)\Z")
_OPAQUE = re.compile(r"(?:chained_\d+\.)?optimizer\.")
_MASTER = "fp32_param"
_EXTRA = "_extra_state"
_OWN_FORM = "the optimizer's state is in Megatron's own buckets, which do not say whose parameters are where: left out"


def recognises(path: Path) -> Format | None:
    """By the name of the backend, or by common.pt beside an index of torch."""
    if (path / MARK).is_file() and _backend(path) == "torch_dist":
        return Format.MEGATRON
    return Format.MEGATRON if (path / ".metadata").is_file() and (path / COMMON).is_file() else None


def read(path: Path) -> Contents:
    """What is in the checkpoint. Raises CheckpointUnreadable: its index is missing, or cannot be read."""
    found = dcp.Folder(path)
    common = _common(path, found)
    parts = found.sections([each for each in found.entries if _is_weight(each)])
    parts.model = {**parts.model}
    masters = _states(found, parts)
    halves = {name: parts.model[name] for name in masters if name in parts.model}
    parts.model.update(masters)
    parts.values = dict(_values(common))
    opaque = [each.key for each in found.entries if _OPAQUE.match(each.key) and not _STATE.match(each.key)]
    if any(each.dtype for each in found.entries if each.key in set(opaque)):
        found.notes.append(_OWN_FORM)
    optimizer = _optimizer(parts, common)
    whole = found.contents(Format.MEGATRON, parts, optimizer, writer="Megatron-LM, torch_dist")
    return msgspec.structs.replace(whole, halves=halves)


def _backend(path: Path) -> str:
    if not (path / MARK).is_file():
        return ""
    try:
        with (path / MARK).open("rb") as stream:
            found = msgspec.json.decode(stream.read(1 << 16))
    except (OSError, msgspec.DecodeError):
        return ""
    return str(found.get("sharded_backend", "")) if isinstance(found, dict) else ""


def _is_weight(entry: Entry) -> bool:
    return bool(entry.dtype) and not _OPAQUE.match(entry.key) and _EXTRA not in entry.key


def _states(found: dcp.Folder, parts: Sections) -> dict[str, Tensor]:
    """Put the optimizer's states where they belong; the 32-bit weights by name."""
    masters: dict[str, Tensor] = {}
    for entry in found.entries:
        match = _STATE.match(entry.key)
        if match is None or not entry.dtype:
            continue
        tensor, name = found.tensor(entry), match["name"]
        if match["key"] == _MASTER:
            masters[name] = msgspec.structs.replace(tensor, name=name)
        else:
            parts.states.setdefault(name, {})[match["key"]] = tensor
    return masters


def _common(path: Path, found: dcp.Folder) -> Mapping[str, Any]:
    """The values that every rank has alike; none, with a gap, where they cannot be read."""
    if COMMON not in found.files:
        return {}
    try:
        value = torch_files.read(path / COMMON).value
    except CheckpointUnreadable as error:
        found.gaps.append(gap_of(error, COMMON))
        return {}
    return value if isinstance(value, Mapping) and is_bounded(value) else {}


def _values(common: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in common.items():
        if key not in ("optimizer", "args"):
            yield str(key), as_plain(value)


def _optimizer(parts: Sections, common: Mapping[str, Any]) -> Optimizer | None:
    """The states; its groups have options, and nothing says which parameters are in which of several."""
    if not parts.states:
        return None
    groups = _groups(common.get("optimizer"))
    step = next((group["step"] for group in groups if isinstance(group.get("step"), int)), None)
    numbers: dict[str, dict[str, float | int]] = {}
    if step is not None:
        numbers = {str(name): {"step": step} for name in parts.states}
    known: tuple[Group, ...] = ()
    if len(groups) == 1:
        options = {str(key): as_plain(value) for key, value in groups[0].items() if key not in ("params", "step")}
        known = (Group(params=tuple(map(str, parts.states)), options=options),)
    return Optimizer(tensors={str(name): each for name, each in parts.states.items()}, numbers=numbers, groups=known)


def _groups(value: Any, depth: int = 4) -> list[Mapping[str, Any]]:
    """The first ``param_groups`` below ``value``: Megatron nests optimizers in one another."""
    if not isinstance(value, Mapping) or not depth:
        return []
    found = value.get("param_groups")
    if isinstance(found, list):
        return [each for each in found if isinstance(each, Mapping)]
    return next((below for each in value.values() if (below := _groups(each, depth - 1))), [])
