"""The state of torch's optimizers, by number or by name, as the neutral form has it: by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Gap, Group, Optimizer, Tensor
from holdfast.facts.checkpoints.files import torch_legacy
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.torch_pickle import TensorAt
from holdfast.facts.checkpoints.state_dicts import dealing, ties
from holdfast.facts.checkpoints.state_dicts.dealing import Shape
from holdfast.facts.checkpoints.state_dicts.values import Source, is_plain, simplified
from holdfast.findings import Unknown

#: States that are numbers even where the parameter itself has one element (torch/optim/{adam,nadam,asgd}.py).
_NUMBERS = frozenset({"step", "mu_product", "eta", "mu"})
#: Buffers of torch's own modules (torch/nn/modules/batchnorm.py), which no optimizer has.
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_PARAMETERS = ("weight", "bias")
_OWN = frozenset({"params", "param_names"})
_FLOATS = ("float", "bfloat", "complex")
_SHOWN = 3


class Found(msgspec.Struct, frozen=True):
    """The optimizer, or None and a note why; and what follows for the parameters that it does not have."""

    optimizer: Optimizer | None = None
    frozen: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    ties: Mapping[str, str] = {}
    step: int | Unknown = Unknown("the format does not say")
    notes: tuple[str, ...] = ()

    def without_ties(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors without the second names that were found."""
        return {name: each for name, each in tensors.items() if name not in self.ties}


class _Raw(msgspec.Struct):
    """One parameter of a group as the file has it."""

    key: int | str
    state: Mapping[str, Any]
    source: Source


def is_optimizer(value: Any) -> bool:
    """It is what ``Optimizer.state_dict()`` gives."""
    return isinstance(value, Mapping) and isinstance(value.get("state"), Mapping) and _are_groups(value)


def given(folder: Path, names: Iterable[str]) -> tuple[list[tuple[Source, Mapping[str, Any]]], list[Gap]]:
    """The optimizers' state_dicts in those files of a folder, each with its file; and which files cannot be read."""
    found: list[tuple[Source, Mapping[str, Any]]] = []
    gaps = []
    for name in names:
        try:
            file = torch_legacy.read(folder / name)
        except CheckpointUnreadable as error:
            gaps.append(gap_of(error, name, beside=True))
            continue
        if is_optimizer(file.value):
            found.append((Source(file, name), file.value))
    return found, gaps


def find(
    root: Path,
    given: Sequence[tuple[Source, Mapping[str, Any]]],
    tensors: Mapping[str, Tensor],
    hints: dealing.Hints | None = None,
    *,
    ordered: bool = True,
) -> Found:
    """The states of a checkpoint's optimizers as one, whose groups are those of all of them.

    ``ordered`` says that the tensors are in the model's order.
    """
    groups, options, names = [], [], []
    for source, state in given:
        for group in state["param_groups"]:
            raw = [_Raw(each, _state(state, each), source) for each in group["params"]]
            groups.append(raw)
            said = group.get("param_names")
            names.append(said if isinstance(said, list) and len(said) == len(raw) else [each.key for each in raw])
            options.append({str(k): simplified(source, v) for k, v in group.items() if k not in _OWN})
    several = (f"the states of {len(given)} optimizers are taken as one",) if len(given) > 1 else ()
    step = _step(groups)
    if all(isinstance(name, str) for group in names for name in group):
        found = _found(root, groups, _as_in(tensors, [list(map(str, group)) for group in names]), options, tensors)
        return msgspec.structs.replace(found, step=step, notes=(*several, *found.notes))
    dealt = _deal(groups, tensors, hints or dealing.Hints(), ordered=ordered)
    if dealt.why:
        count = sum(map(len, groups))
        why = f"the state of the optimizer ({count:,} parameters by number) has no names: {dealt.why}"
        hint = "" if ordered else " (--order names a file that has them in the model's order)"
        if ordered and count < len(tensors):
            hint = " (--frozen names those that it does not have)"
        return Found(step=step, notes=(*several, why + hint))
    if dealt.assumed:
        listed = ", ".join(dealt.assumed[:_SHOWN]) + (", ..." if len(dealt.assumed) > _SHOWN else "")
        why = f"that the optimizer does not have {listed} is what fits if modules are frozen as a whole"
        several = (*several, f"{why} (--frozen says it otherwise)")
    found = _found(root, groups, dealt.groups, options, tensors)
    return msgspec.structs.replace(found, step=step, notes=(*several, *found.notes))


def _step(groups: Sequence[Sequence[_Raw]]) -> int | Unknown:
    """The step that all states of an optimizer say."""
    said = [(raw.source, raw.state["step"]) for group in groups for raw in group if "step" in raw.state]
    found = [simplified(source, value) for source, value in said]
    steps = {value for value in found if isinstance(value, (int, float)) and math.isfinite(value)}
    if len(steps) == 1:
        return int(steps.pop())
    return Unknown("the optimizer's parameters are at different steps" if steps else "the format does not say")


def _as_in(tensors: Mapping[str, Tensor], names: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The names as the model has them: a wrapper may have put something in front of all of them since (``module.``)."""
    first = next((name for group in names for name in group), "")
    for each in tensors:
        before = each.removesuffix(first)
        if each.endswith(first) and all(before + name in tensors for group in names for name in group):
            return tuple(tuple(before + name for name in group) for group in names)
    return tuple(tuple(group) for group in names)


def _deal(
    groups: Sequence[Sequence[_Raw]], tensors: Mapping[str, Tensor], hints: dealing.Hints, *, ordered: bool
) -> dealing.Dealt:
    shapes = [[_shape(each) for each in group] for group in groups]
    possible = {shape for group in shapes for shape in group}
    candidates = [
        (name, tensor.shape) for name, tensor in tensors.items()
        if tensor.dtype.startswith(_FLOATS) and not name.endswith(_BUFFERS)
        and (None in possible or tensor.shape in possible)
    ]  # fmt: skip
    left = hints.left(candidates)
    return dealing.deal(left, shapes) if ordered or hints.order else dealing.deal_unordered(left, shapes)


def _found(
    root: Path,
    groups: Sequence[Sequence[_Raw]], names: Sequence[Sequence[str]], options: Sequence[Mapping[str, Any]],
    tensors: Mapping[str, Tensor],
) -> Found:  # fmt: skip
    states: dict[str, dict[str, Tensor]] = {}
    numbers: dict[str, dict[str, float | int]] = {}
    odd: set[str] = set()
    for group, named in zip(groups, names, strict=True):
        for raw, name in zip(group, named, strict=True):
            for key, value in ((str(each), value) for each, value in raw.state.items()):
                made = _made(raw.source, f"{name}.{key}", key, value, tensors.get(name))
                if isinstance(made, Tensor):
                    states.setdefault(name, {})[key] = made
                elif isinstance(made, (int, float)):
                    numbers.setdefault(name, {})[key] = made
                elif made is not None:
                    odd.add(key)
    notes: tuple[str, ...] = ()
    if odd:
        notes = (f"states of the optimizer that are neither tensors nor numbers: {', '.join(sorted(odd))}",)
    made_groups = [Group(params=tuple(named), options=each) for named, each in zip(names, options, strict=True)]
    found = Optimizer(tensors=states, numbers=numbers, groups=tuple(made_groups))
    tied = ties.found(root, tensors, found)
    taken = {name for group in names for name in group} | set(tied)
    left = [name for name in tensors if name not in taken] if taken & set(tensors) else []
    frozen = frozenset(name for name in left if name.endswith(_PARAMETERS))
    return Found(found, frozen, frozenset(left) - frozen, tied, notes=notes)


def _made(source: Source, name: str, key: str, value: Any, param: Tensor | None) -> Any:
    """A state as a tensor or a number; itself where it is neither."""
    if not isinstance(value, TensorAt):
        return value if value is None or is_plain(value) else False
    whole = param is not None and value.shape == param.shape and key not in _NUMBERS
    number = None if whole else source.number(value)
    return source.tensor(name, value) if number is None else number


def _shape(raw: _Raw) -> Shape | None:
    """That of the parameter, where all of its states that are tensors have one."""
    shapes = {each.shape for key, each in raw.state.items() if isinstance(each, TensorAt) and key not in _NUMBERS}
    return shapes.pop() if len(shapes) == 1 else None


def _state(state: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
    found = state["state"].get(key)
    return found if isinstance(found, Mapping) else {}


def _are_groups(value: Mapping[str, Any]) -> bool:
    groups = value.get("param_groups")
    return isinstance(groups, list) and all(_is_group(each) for each in groups)


def _is_group(value: Any) -> bool:
    keys: Iterator[Any] = iter(value.get("params", ())) if isinstance(value, Mapping) else iter(())
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("params"), list)
        and all(isinstance(key, (int, str)) for key in keys)
    )
