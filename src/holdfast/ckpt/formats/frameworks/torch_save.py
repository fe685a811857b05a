"""Reads one torch.save file: a state_dict, a dict with model and optimizer, or a module.

Users choose the keys; ``state_dicts`` knows the common ones and otherwise takes the largest part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat, Tensor
from holdfast.ckpt.files import torch_legacy
from holdfast.ckpt.files.torch_files import is_zip
from holdfast.ckpt.state_dicts import model as state_dicts
from holdfast.ckpt.state_dicts import optimizers
from holdfast.ckpt.state_dicts.model import ModelTensors
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.state_dicts.values import TorchSource, flatten_values
from holdfast.core.findings import Unknown

#: Common keys of the optimizer step count.
_STEPS = tuple(
    """
    step global_step global_steps iteration iter_num iter steps num_updates
    """.split()
)


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize a file that starts like a torch.save file, zip or legacy."""
    return (
        CheckpointFormat.TORCH
        if path.is_file() and (is_zip(path) or torch_legacy.is_legacy(path))
        else None
    )


def read_contents(path: Path, hints: MappingHints | None = None) -> CheckpointContents:
    """Return the contents; ``hints``: see :func:`optimizers.merge_optimizers`.

    Raises:
        CheckpointUnreadable: it cannot be read.
    """
    file = torch_legacy.read_torch_file(path)
    source = TorchSource(file, "")
    value = file.value if isinstance(file.value, Mapping) else _as_mapping(file.value)
    return build_contents(CheckpointFormat.TORCH, source, value, hints)


def build_contents(
    form: CheckpointFormat,
    source: TorchSource,
    value: Mapping[Any, Any],
    hints: MappingHints | None = None,
) -> CheckpointContents:
    """Convert a dict with model, optimizers and other values to the neutral form."""
    states = _find_optimizers(value)
    key = (
        None
        if optimizers.is_optimizer(value)
        else state_dicts.find_model_key(
            {item: inner for item, inner in value.items() if item not in states}
        )
    )
    model, rest = _split_model(source, value, key, states)
    optimizer_states = [(source, state) for several in states.values() for state in several]
    path = source.file.path
    optimizer = (
        optimizers.merge_optimizers(path, optimizer_states, model.tensors, hints)
        if optimizer_states
        else optimizers.OptimizerResult()
    )
    extra_values = dict(flatten_values(source, rest)) if rest else {}
    step = next(
        (extra_values[item] for item in _STEPS if type(extra_values.get(item)) is int), None
    )
    notes = [*optimizer.notes, *_notes(source, key, extra_values)]
    return CheckpointContents(
        format=form,
        root=str(path),
        tensors=optimizer.without_ties(model.tensors),
        ties={**model.ties, **optimizer.ties},
        frozen=optimizer.frozen | model.frozen,
        buffers=(optimizer.buffers | model.buffers) - model.frozen,
        optimizer=optimizer.optimizer,
        step=optimizer.step if step is None else step,
        world_size=Unknown("not recorded in a single file"),
        writer="torch",
        values=extra_values,
        files={"": path.stat().st_size},
        notes=tuple(notes),
        problems=tuple(model.problems),
    )


def _split_model(
    source: TorchSource, value: Mapping[Any, Any], key: str | None, states: Mapping[str, Any]
) -> tuple[ModelTensors, dict[str, Any]]:
    """Return the model, and the other entries."""
    if optimizers.is_optimizer(value):
        return ModelTensors(), {}
    others = {str(item): inner for item, inner in value.items() if item not in states}
    if key is not None:
        model = state_dicts.collect_model(source, others.pop(key))
        prefix = f"{key}."
    else:
        model, prefix, others = state_dicts.collect_model(source, others), "", {}
    others |= {f"{prefix}{name}": item for name, item in model.rest.items()}
    return model, others


def _find_optimizers(value: Mapping[Any, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return optimizer states by key."""
    if optimizers.is_optimizer(value):
        return {"": [value]}
    states: dict[str, list[Mapping[str, Any]]] = {}
    for key, item in value.items():
        several = item if isinstance(item, list) else [item]
        if several and all(map(optimizers.is_optimizer, several)):
            states[key] = several
    return states


def _notes(source: TorchSource, key: str | None, extra_values: Mapping[str, Any]) -> list[str]:
    notes = []
    if key is not None and key not in state_dicts.KEYS:
        notes.append(f"assumed that {key}, the largest part, is the model")
    more = sorted(
        {
            path.partition(".")[0]
            for path, value in extra_values.items()
            if isinstance(value, Tensor)
        }
    )
    if more:
        notes.append(f"contains tensors outside the model, in {', '.join(more)}")
    if source.file.foreign:
        notes.append(f"contains opaque objects of classes {', '.join(source.file.foreign[:5])}")
    return notes


def _as_mapping(value: Any) -> Mapping[Any, Any]:
    """Return a value that is not a dict as one."""
    if isinstance(value, (list, tuple)):
        return {str(number): item for number, item in enumerate(value)}
    if state_dicts.holds_tensors(value):
        return {"model": value}
    return {"value": value}
