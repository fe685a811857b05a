"""Optimizers that know their parameters by number (``torch.optim``'s own state_dict), by names."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.facts.checkpoints.contents import Group, Optimizer, Tensor
from holdfast.facts.checkpoints.state_dicts.dealing import Dealt, Hints, deal
from holdfast.facts.checkpoints.state_dicts.sections import Sections

_FLOATS = ("float", "bfloat", "complex")
_WITHOUT = "the state of the optimizer has numbers in the place of names, and is left out:"


def named(
    parts: Sections, tensors: Mapping[str, Tensor], hints: Hints | None = None
) -> tuple[Optimizer | None, tuple[str, ...]]:
    """The optimizer by names, of a model with these ``tensors`` (without second names), in order; and notes about it.

    None, where its numbers fit in no way, or in several.
    """
    if not parts.groups:
        return None, (f"{_WITHOUT} it has no groups",)
    shapes = [[_shape(parts, each) for each in group.get("params", ())] for group in parts.groups]
    possible = {shape for group in shapes for shape in group}
    candidates = [
        (name, tensor.shape) for name, tensor in tensors.items()
        if tensor.dtype.startswith(_FLOATS) and (None in possible or tensor.shape in possible)
    ]  # fmt: skip
    dealt = deal((hints or Hints()).left(candidates), shapes)
    if dealt.why:
        return None, (f"{_WITHOUT} {dealt.why} (--frozen names those that it does not have)",)
    return _renamed(parts, dealt), _assumed(dealt)


def _assumed(dealt: Dealt) -> tuple[str, ...]:
    if not dealt.assumed:
        return ()
    listed = ", ".join(dealt.assumed[:3]) + (", ..." if len(dealt.assumed) > 3 else "")
    why = f"that the optimizer does not have {listed} is what fits if modules are frozen as a whole"
    return (f"{why} (--frozen says it otherwise)",)


def _shape(parts: Sections, number: int | str) -> tuple[int, ...] | None:
    """The shape of a parameter by that of its state; None where it has none yet."""
    shapes = {tensor.shape for tensor in parts.states.get(number, {}).values()}
    return shapes.pop() if len(shapes) == 1 else None


def _renamed(parts: Sections, dealt: Dealt) -> Optimizer:
    names = {
        number: name
        for group, given in zip(parts.groups, dealt.groups, strict=True)
        for number, name in zip(group.get("params", ()), given, strict=True)
    }
    known = {number: name for number, name in names.items() if number in parts.states or number in parts.numbers}
    return Optimizer(
        tensors={name: parts.states.get(number, {}) for number, name in known.items()},
        numbers={name: parts.numbers.get(number, {}) for number, name in known.items()},
        groups=tuple(
            Group(params=tuple(given), options={key: value for key, value in group.items() if key != "params"})
            for group, given in zip(parts.groups, dealt.groups, strict=True)
        ),
    )
