"""Builds the terminal view and JSON document of ``holdfast ckpt inspect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    OptimizerState,
    ParamGroup,
    Tensor,
)
from holdfast.ckpt.files.torch_files import to_plain
from holdfast.ckpt.render.inspection import InspectionView, TensorLine
from holdfast.core.findings import Unknown
from holdfast.core.text import pluralize
from holdfast.report.evidence_summary import size_text

#: Display names of the formats.
FORMAT_NAMES: Mapping[CheckpointFormat, str] = {
    CheckpointFormat.TORCH: "torch.save file",
    CheckpointFormat.SAFETENSORS: "safetensors",
    CheckpointFormat.HUGGINGFACE: "Hugging Face folder",
    CheckpointFormat.DCP: "torch.distributed.checkpoint",
    CheckpointFormat.HOLDFAST: "holdfast checkpoint",
    CheckpointFormat.FSDP1_LOCAL: "FSDP1 local state_dicts, one per rank",
    CheckpointFormat.FSDP1_SHARDED: "FSDP1 sharded state_dicts, one per rank",
    CheckpointFormat.FSDP2_SHARDED: "FSDP2 sharded state_dicts, one per rank",
    CheckpointFormat.ZERO1: "DeepSpeed ZeRO-1",
    CheckpointFormat.ZERO2: "DeepSpeed ZeRO-2",
    CheckpointFormat.ZERO3: "DeepSpeed ZeRO-3",
    CheckpointFormat.UNIVERSAL: "DeepSpeed universal",
    CheckpointFormat.MEGATRON: "Megatron dist",
    CheckpointFormat.ACCELERATE: "Accelerate",
    CheckpointFormat.LIGHTNING: "Lightning",
}
_MAX_NAMES = 4
_MAX_TEXT = 200


def build_view(contents: CheckpointContents) -> InspectionView:
    """Return the terminal view."""
    lines = tuple(tensor_line(tensor) for tensor in contents.tensors.values())
    return InspectionView(
        headline=f"{contents.root}: {FORMAT_NAMES[contents.format]}, {_weights_text(contents)}",
        about=tuple(_about_rows(contents)),
        tensors=lines,
        optimizer=tuple(_optimizer_rows(contents)),
        values=tuple((path, _short_text(value)) for path, value in contents.values.items()),
        missing=tuple(
            (problem.kind, _file_text(problem.file, problem.rank), problem.why)
            for problem in contents.problems
        ),
        notes=contents.notes,
    )


def build_document(contents: CheckpointContents) -> dict[str, Any]:
    """Return the command-specific keys of ``--json``."""
    optimizer, tensors = contents.optimizer, contents.tensors.values()
    return {
        "format": contents.format,
        "path": contents.root,
        "writer": contents.writer,
        "step": _int_or_none(contents.step),
        "world_size": _int_or_none(contents.world_size),
        "parameters": sum(tensor.numel for tensor in tensors),
        "size": sum(contents.files.values()),
        "files": contents.files,
        "tensors": [tensor_line(tensor) for tensor in tensors],
        "halves": [tensor_line(tensor) for tensor in contents.halves.values()],
        "ties": contents.ties,
        "frozen": sorted(contents.frozen),
        "buffers": sorted(contents.buffers),
        "optimizer": _optimizer_document(optimizer) if optimizer is not None else None,
        "values": {path: _to_json_value(value) for path, value in contents.values.items()},
        "missing": contents.problems,
        "notes": contents.notes,
    }


def _optimizer_document(optimizer: OptimizerState) -> dict[str, Any]:
    states = {
        key: {"parameters": count, "size": size}
        for key, (count, size) in _count_states(optimizer).items()
    }
    groups = [
        {"params": group.params, "options": to_plain(group.options)} for group in optimizer.groups
    ]
    return {"states": states, "groups": groups}


def tensor_line(tensor: Tensor) -> TensorLine:
    """Return the display line of one tensor."""
    files = tuple(dict.fromkeys(shard.file for shard in tensor.shards))
    return TensorLine(tensor.name, tensor.dtype, tensor.shape, tensor.size, files)


def _weights_text(contents: CheckpointContents) -> str:
    numel = sum(tensor.numel for tensor in contents.tensors.values())
    size = size_text(sum(contents.files.values()))
    return f"{pluralize(len(contents.tensors), 'tensor')} with {numel:,} elements, {size} on disk"


def _about_rows(contents: CheckpointContents) -> Iterator[tuple[str, str]]:
    yield "format", contents.format + (f", written by {contents.writer}" if contents.writer else "")
    yield (
        "step",
        f"{contents.step:,}" if isinstance(contents.step, int) else f"unknown: {contents.step.why}",
    )
    ranks = contents.world_size
    yield "ranks", f"{ranks:,}" if isinstance(ranks, int) else f"unknown: {ranks.why}"
    shard_count = max((len(tensor.shards) for tensor in contents.tensors.values()), default=0)
    divided = f"; up to {shard_count:,} shards per tensor" if shard_count > 1 else ""
    yield "files", f"{len(contents.files):,}{divided}"
    dtypes: Counter[str] = Counter()
    for tensor in contents.tensors.values():
        dtypes[tensor.dtype] += tensor.numel
    yield "dtypes", ", ".join(f"{number:,} in {dtype}" for dtype, number in dtypes.most_common())
    if contents.halves:
        halves = {tensor.dtype for tensor in contents.halves.values()}
        yield (
            "16-bit copies",
            f"{pluralize(len(contents.halves), 'tensor')} in {', '.join(sorted(halves))}",
        )
    if contents.ties:
        yield "tied", _list_names([f"{name} = {first}" for name, first in contents.ties.items()])
    if contents.frozen:
        yield "frozen", _list_names(sorted(contents.frozen))
    if contents.buffers:
        yield "buffers", _list_names(sorted(contents.buffers))


def _optimizer_rows(contents: CheckpointContents) -> Iterator[tuple[str, str]]:
    optimizer = contents.optimizer
    if optimizer is None:
        return
    for key, (count, size) in _count_states(optimizer).items():
        yield key, f"{pluralize(count, 'parameter')}, {size_text(size)}"
    for number, group in enumerate(optimizer.groups):
        yield f"group {number}", _group_text(group)


def _count_states(optimizer: OptimizerState) -> dict[str, tuple[int, int]]:
    """Return (number of parameters, bytes) for each state that is a tensor."""
    counts: dict[str, tuple[int, int]] = {}
    for states in optimizer.tensors.values():
        for key, tensor in states.items():
            count, size = counts.get(key, (0, 0))
            counts[key] = (count + 1, size + tensor.size)
    return counts


def _group_text(group: ParamGroup) -> str:
    options = [
        f"{key} {_short_text(value)}"
        for key, value in group.options.items()
        if value is not None and value is not False
    ]
    return f"{pluralize(len(group.params), 'parameter')}: {', '.join(options)}"


def _int_or_none(value: int | Unknown) -> int | None:
    return value if isinstance(value, int) else None


def _file_text(file: str, rank: int | None) -> str:
    return f"{file} (rank {rank})" if rank is not None else file


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (
        f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    )


def _to_json_value(value: Any) -> Any:
    return (
        f"<{value.dtype} tensor of {list(value.shape)}>"
        if isinstance(value, Tensor)
        else to_plain(value)
    )


def _short_text(value: Any) -> str:
    text = str(_to_json_value(value))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
