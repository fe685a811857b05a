"""A checkpoint that was read, as ``holdfast ckpt inspect`` shows it: counted, summed, and made plain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.facts.checkpoints.contents import Contents, Format, Group, Optimizer, Tensor
from holdfast.facts.checkpoints.files.torch_files import plain
from holdfast.findings import Unknown
from holdfast.report.evidence import size_text
from holdfast.report.inspected import Inspected, Line
from holdfast.report.text import plural

#: What the formats are called.
CALLED: Mapping[Format, str] = {
    Format.TORCH: "a file of torch.save", Format.SAFETENSORS: "safetensors",
    Format.HUGGINGFACE: "a folder of Hugging Face", Format.DCP: "torch.distributed.checkpoint",
    Format.HOLDFAST: "a checkpoint of holdfast", Format.FSDP1_LOCAL: "FSDP1, local state_dicts of ranks",
    Format.FSDP1_SHARDED: "FSDP1, sharded state_dicts of ranks",
    Format.FSDP2_SHARDED: "FSDP2, sharded state_dicts of ranks", Format.ZERO1: "DeepSpeed ZeRO-1",
    Format.ZERO2: "DeepSpeed ZeRO-2", Format.ZERO3: "DeepSpeed ZeRO-3", Format.UNIVERSAL: "DeepSpeed universal",
    Format.MEGATRON: "Megatron dist", Format.ACCELERATE: "Accelerate", Format.LIGHTNING: "Lightning",
}  # fmt: skip
_NAMES = 4
_TEXT = 200


def shown(found: Contents) -> Inspected:
    """What is printed about it."""
    lines = tuple(line_of(each) for each in found.tensors.values())
    return Inspected(
        headline=f"{found.root}: {CALLED[found.format]}, {_weights(found)}",
        about=tuple(_about(found)), tensors=lines, optimizer=tuple(_optimizer(found)),
        values=tuple((path, _text(value)) for path, value in found.values.items()),
        missing=tuple((gap.kind, _file(gap.file, gap.rank), gap.why) for gap in found.gaps),
        notes=found.notes,
    )  # fmt: skip


def document(found: Contents) -> dict[str, Any]:
    """The keys of ``--json`` that are not those of every command."""
    optimizer, tensors = found.optimizer, found.tensors.values()
    return {
        "format": found.format, "path": found.root, "writer": found.writer, "step": _known(found.step),
        "world_size": _known(found.world_size), "parameters": sum(each.numel for each in tensors),
        "size": sum(found.files.values()), "files": found.files, "tensors": [line_of(each) for each in tensors],
        "halves": [line_of(each) for each in found.halves.values()], "ties": found.ties,
        "frozen": sorted(found.frozen), "buffers": sorted(found.buffers),
        "optimizer": _optimizer_document(optimizer) if optimizer is not None else None,
        "values": {path: _plain(value) for path, value in found.values.items()},
        "missing": found.gaps, "notes": found.notes,
    }  # fmt: skip


def _optimizer_document(optimizer: Optimizer) -> dict[str, Any]:
    states = {key: {"parameters": count, "size": size} for key, (count, size) in _states(optimizer).items()}
    groups = [{"params": group.params, "options": plain(group.options)} for group in optimizer.groups]
    return {"states": states, "groups": groups}


def line_of(tensor: Tensor) -> Line:
    """One tensor as it is shown."""
    files = tuple(dict.fromkeys(piece.file for piece in tensor.pieces))
    return Line(tensor.name, tensor.dtype, tensor.shape, tensor.size, files)


def _weights(found: Contents) -> str:
    numel = sum(each.numel for each in found.tensors.values())
    return (
        f"{plural(len(found.tensors), 'tensor')} of {numel:,} numbers, {size_text(sum(found.files.values()))} on disk"
    )


def _about(found: Contents) -> Iterator[tuple[str, str]]:
    yield "format", found.format + (f", written by {found.writer}" if found.writer else "")
    yield "step", f"{found.step:,}" if isinstance(found.step, int) else f"unknown: {found.step.why}"
    ranks = found.world_size
    yield "ranks", f"{ranks:,}" if isinstance(ranks, int) else f"unknown: {ranks.why}"
    pieces = max((len(each.pieces) for each in found.tensors.values()), default=0)
    divided = f"; a tensor is in up to {pieces:,} pieces" if pieces > 1 else ""
    yield "files", f"{len(found.files):,}{divided}"
    dtypes: Counter[str] = Counter()
    for each in found.tensors.values():
        dtypes[each.dtype] += each.numel
    yield "dtypes", ", ".join(f"{number:,} in {dtype}" for dtype, number in dtypes.most_common())
    if found.halves:
        halves = {each.dtype for each in found.halves.values()}
        yield "copies", f"{plural(len(found.halves), 'tensor')} also in {', '.join(sorted(halves))}"
    if found.ties:
        yield "tied", _listed([f"{name} = {first}" for name, first in found.ties.items()])
    if found.frozen:
        yield "frozen", _listed(sorted(found.frozen))
    if found.buffers:
        yield "buffers", _listed(sorted(found.buffers))


def _optimizer(found: Contents) -> Iterator[tuple[str, str]]:
    optimizer = found.optimizer
    if optimizer is None:
        return
    for key, (count, size) in _states(optimizer).items():
        yield key, f"of {plural(count, 'parameter')}, {size_text(size)}"
    for number, group in enumerate(optimizer.groups):
        yield f"group {number}", _group(group)


def _states(optimizer: Optimizer) -> dict[str, tuple[int, int]]:
    """Each state that is a tensor: of how many parameters, and its bytes."""
    found: dict[str, tuple[int, int]] = {}
    for states in optimizer.tensors.values():
        for key, tensor in states.items():
            count, size = found.get(key, (0, 0))
            found[key] = (count + 1, size + tensor.size)
    return found


def _group(group: Group) -> str:
    options = [
        f"{key} {_text(value)}" for key, value in group.options.items() if value is not None and value is not False
    ]
    return f"{plural(len(group.params), 'parameter')}: {', '.join(options)}"


def _known(value: int | Unknown) -> int | None:
    return value if isinstance(value, int) else None


def _file(file: str, rank: int | None) -> str:
    return f"{file} (rank {rank})" if rank is not None else file


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else "")


def _plain(value: Any) -> Any:
    return f"<{value.dtype} tensor of {list(value.shape)}>" if isinstance(value, Tensor) else plain(value)


def _text(value: Any) -> str:
    text = str(_plain(value))
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
