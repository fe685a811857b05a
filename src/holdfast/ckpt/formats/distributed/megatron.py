"""Reads Megatron-LM ``torch_dist`` checkpoints: DCP with flat keys, plain values in common.pt.

    metadata.json   {"sharded_backend": "torch_dist", ...}
    common.pt       iteration, arguments, and what all ranks share: optimizer groups, scheduler
    .metadata, …    optimizer.state.exp_avg.<name>, optimizer.state.fp32_param.<name>, <name>

Keys: megatron/core/optimizer (``sharded_param_state_fs_model_space``) and dist_checkpointing. The
fp32 weights are stored with the optimizer; the model's own are their copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    OptimizerState,
    ParamGroup,
    Tensor,
)
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.distributed import dcp
from holdfast.ckpt.formats.distributed.blobs import as_plain, is_bounded
from holdfast.ckpt.formats.distributed.index import IndexEntry
from holdfast.ckpt.state_dicts.sections import Sections
from holdfast.core.errors import CheckpointUnreadable

MARK, COMMON = "metadata.json", "common.pt"
_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<key>\w+)\.(?P<name>.+)\Z")
_OPAQUE = re.compile(r"(?:chained_\d+\.)?optimizer\.")
_MASTER = "fp32_param"
_EXTRA = "_extra_state"
_OWN_FORM = (
    "optimizer state omitted: it is in Megatron's own buckets, which do not record parameter names"
)


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize the backend in metadata.json, or common.pt next to torch's index."""
    if (path / MARK).is_file() and _sharded_backend(path) == "torch_dist":
        return CheckpointFormat.MEGATRON
    return (
        CheckpointFormat.MEGATRON
        if (path / ".metadata").is_file() and (path / COMMON).is_file()
        else None
    )


def read_contents(path: Path) -> CheckpointContents:
    """Return the contents. Raises CheckpointUnreadable: the index is missing or invalid."""
    folder = dcp.DcpFolder(path)
    common = _read_common(path, folder)
    sections = folder.sections([entry for entry in folder.entries if _is_weight(entry)])
    sections.model = {**sections.model}
    masters = _add_states(folder, sections)
    halves = {name: sections.model[name] for name in masters if name in sections.model}
    sections.model.update(masters)
    sections.values = dict(_common_values(common))
    opaque = [
        entry.key
        for entry in folder.entries
        if _OPAQUE.match(entry.key) and not _STATE.match(entry.key)
    ]
    if any(entry.dtype for entry in folder.entries if entry.key in set(opaque)):
        folder.notes.append(_OWN_FORM)
    optimizer = _optimizer(sections, common)
    contents = folder.contents(
        CheckpointFormat.MEGATRON, sections, optimizer, writer="Megatron-LM, torch_dist"
    )
    return msgspec.structs.replace(contents, halves=halves)


def _sharded_backend(path: Path) -> str:
    if not (path / MARK).is_file():
        return ""
    try:
        with (path / MARK).open("rb") as stream:
            document = msgspec.json.decode(stream.read(1 << 16))
    except (OSError, msgspec.DecodeError):
        return ""
    return str(document.get("sharded_backend", "")) if isinstance(document, dict) else ""


def _is_weight(entry: IndexEntry) -> bool:
    return bool(entry.dtype) and not _OPAQUE.match(entry.key) and _EXTRA not in entry.key


def _add_states(folder: dcp.DcpFolder, sections: Sections) -> dict[str, Tensor]:
    """Add the optimizer's states to ``sections``; return the fp32 weights by name."""
    masters: dict[str, Tensor] = {}
    for entry in folder.entries:
        match = _STATE.match(entry.key)
        if match is None or not entry.dtype:
            continue
        tensor, name = folder.tensor(entry), match["name"]
        if match["key"] == _MASTER:
            masters[name] = msgspec.structs.replace(tensor, name=name)
        else:
            sections.states.setdefault(name, {})[match["key"]] = tensor
    return masters


def _read_common(path: Path, folder: dcp.DcpFolder) -> Mapping[str, Any]:
    """Return the values shared by all ranks; empty, with a problem, if unreadable."""
    if COMMON not in folder.files:
        return {}
    try:
        value = torch_files.read_torch_file(path / COMMON).value
    except CheckpointUnreadable as error:
        folder.problems.append(problem_of(error, COMMON))
        return {}
    return value if isinstance(value, Mapping) and is_bounded(value) else {}


def _common_values(common: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in common.items():
        if key not in ("optimizer", "args"):
            yield str(key), as_plain(value)


def _optimizer(sections: Sections, common: Mapping[str, Any]) -> OptimizerState | None:
    """Return the optimizer; with several groups, their parameters are unknown."""
    if not sections.states:
        return None
    groups = _groups(common.get("optimizer"))
    step = next((group["step"] for group in groups if isinstance(group.get("step"), int)), None)
    numbers: dict[str, dict[str, float | int]] = {}
    if step is not None:
        numbers = {str(name): {"step": step} for name in sections.states}
    param_groups: tuple[ParamGroup, ...] = ()
    if len(groups) == 1:
        options = {
            str(key): as_plain(value)
            for key, value in groups[0].items()
            if key not in ("params", "step")
        }
        param_groups = (ParamGroup(params=tuple(map(str, sections.states)), options=options),)
    return OptimizerState(
        tensors={str(name): states for name, states in sections.states.items()},
        numbers=numbers,
        groups=param_groups,
    )


def _groups(value: Any, depth: int = 4) -> list[Mapping[str, Any]]:
    """Return the first ``param_groups`` below ``value``; Megatron nests optimizers."""
    if not isinstance(value, Mapping) or not depth:
        return []
    groups = value.get("param_groups")
    if isinstance(groups, list):
        return [child for child in groups if isinstance(child, Mapping)]
    return next((below for child in value.values() if (below := _groups(child, depth - 1))), [])
