"""One file of torch.save: a state_dict, a dict with a model, an optimizer and more, or a whole module.

People call the parts what they like; ``state_dicts`` knows the usual names and takes the largest part otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.facts.checkpoints.contents import Contents, Format
from holdfast.facts.checkpoints.files import torch_legacy
from holdfast.facts.checkpoints.files.torch_files import is_zip
from holdfast.facts.checkpoints.state_dicts import model as state_dicts
from holdfast.facts.checkpoints.state_dicts import optimizers
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.facts.checkpoints.state_dicts.model import Model
from holdfast.facts.checkpoints.state_dicts.values import Source, values
from holdfast.findings import Unknown

#: What people call the number of steps of the optimizer.
_STEPS = ("step", "global_step", "global_steps", "iteration", "iter_num", "iter", "steps", "num_updates")


def recognises(path: Path) -> Format | None:
    """A file that begins as torch.save's do, of now or of before 1.6."""
    return Format.TORCH if path.is_file() and (is_zip(path) or torch_legacy.is_legacy(path)) else None


def read(path: Path, hints: Hints | None = None) -> Contents:
    """What is in the file. ``hints``: see :func:`optimizers.find`. Raises CheckpointUnreadable."""
    file = torch_legacy.read(path)
    source = Source(file, "")
    value = file.value if isinstance(file.value, Mapping) else _numbered(file.value)
    return contents(Format.TORCH, source, value, hints)


def contents(form: Format, source: Source, value: Mapping[Any, Any], hints: Hints | None = None) -> Contents:
    """What a dict of a model, optimizers and other things is in the neutral form."""
    states = _optimizers(value)
    key = (
        None
        if optimizers.is_optimizer(value)
        else state_dicts.key_of({each: inner for each, inner in value.items() if each not in states})
    )
    model, rest = _model(source, value, key, states)
    given = [(source, state) for several in states.values() for state in several]
    path = source.file.path
    found = optimizers.find(path, given, model.tensors, hints) if given else optimizers.Found()
    said = dict(values(source, rest)) if rest else {}
    step = next((said[each] for each in _STEPS if type(said.get(each)) is int), None)
    notes = [*found.notes, *_notes(source, key, said)]
    return Contents(
        format=form, root=str(path), tensors=found.without_ties(model.tensors),
        ties={**model.ties, **found.ties},
        frozen=found.frozen | model.frozen, buffers=(found.buffers | model.buffers) - model.frozen,
        optimizer=found.optimizer, step=found.step if step is None else step,
        world_size=Unknown("it is one file, which any number of ranks may have written"),
        writer="torch", values=said, files={"": path.stat().st_size}, notes=tuple(notes), gaps=tuple(model.gaps),
    )  # fmt: skip


def _model(
    source: Source, value: Mapping[Any, Any], key: str | None, states: Mapping[str, Any]
) -> tuple[Model, dict[str, Any]]:
    """The model, and what else there is."""
    if optimizers.is_optimizer(value):
        return Model(), {}
    others = {str(each): inner for each, inner in value.items() if each not in states}
    if key is not None:
        model = state_dicts.model_of(source, others.pop(key))
        prefix = f"{key}."
    else:
        model, prefix, others = state_dicts.model_of(source, others), "", {}
    others |= {f"{prefix}{name}": each for name, each in model.rest.items()}
    return model, others


def _optimizers(value: Mapping[Any, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The states of optimizers by their keys."""
    if optimizers.is_optimizer(value):
        return {"": [value]}
    found: dict[str, list[Mapping[str, Any]]] = {}
    for key, each in value.items():
        several = each if isinstance(each, list) else [each]
        if several and all(map(optimizers.is_optimizer, several)):
            found[key] = several
    return found


def _notes(source: Source, key: str | None, said: Mapping[str, Any]) -> list[str]:
    notes = []
    if key is not None and key not in state_dicts.KEYS:
        notes.append(f"the largest part, {key}, is taken for the model")
    more = sorted({path.partition(".")[0] for path, each in said.items() if hasattr(each, "pieces")})
    if more:
        notes.append(f"there are tensors besides the model's, in {', '.join(more)}")
    if source.file.foreign:
        notes.append(f"it holds objects of classes that are not looked into: {', '.join(source.file.foreign[:5])}")
    return notes


def _numbered(value: Any) -> Mapping[Any, Any]:
    """A value that is no dict as one."""
    if isinstance(value, (list, tuple)):
        return {str(number): each for number, each in enumerate(value)}
    if state_dicts.holds_tensors(value):
        return {"model": value}
    return {"value": value}
