"""Maps numbered optimizer parameters (``torch.optim``'s own state_dict) to names."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ckpt.contents import OPTIMIZER_OMITTED, OptimizerState, ParamGroup, Tensor
from holdfast.ckpt.state_dicts.optimizer_params import (
    MappingHints,
    ParameterMapping,
    map_parameters,
)
from holdfast.ckpt.state_dicts.sections import Sections

_FLOATS = ("float", "bfloat", "complex")
_WITHOUT = f"{OPTIMIZER_OMITTED}, because it numbers its parameters:"


def optimizer_by_name(
    sections: Sections, tensors: Mapping[str, Tensor], hints: MappingHints | None = None
) -> tuple[OptimizerState | None, tuple[str, ...]]:
    """Return the optimizer by parameter name, and notes.

    ``tensors`` are the model's without aliases, in order. None: the mapping is impossible or
    ambiguous.
    """
    if not sections.groups:
        return None, (f"{_WITHOUT} it has no parameter groups",)
    shapes = [
        [_param_shape(sections, item) for item in group.get("params", ())]
        for group in sections.groups
    ]
    possible = {shape for group in shapes for shape in group}
    candidates = [
        (name, tensor.shape)
        for name, tensor in tensors.items()
        if tensor.dtype.startswith(_FLOATS) and (None in possible or tensor.shape in possible)
    ]
    mapping = map_parameters((hints or MappingHints()).left(candidates), shapes)
    if mapping.why:
        return None, (f"{_WITHOUT} {mapping.why} (use --frozen to exclude parameters)",)
    return _rename_params(sections, mapping), _assumption_notes(mapping)


def _assumption_notes(mapping: ParameterMapping) -> tuple[str, ...]:
    if not mapping.assumed:
        return ()
    listed = ", ".join(mapping.assumed[:3]) + (", ..." if len(mapping.assumed) > 3 else "")
    why = f"assumed that the optimizer excludes {listed}, as fits if whole modules are frozen"
    return (f"{why} (override with --frozen)",)


def _param_shape(sections: Sections, number: int | str) -> tuple[int, ...] | None:
    """Return the shape of a parameter from its state; None if it has no state yet."""
    shapes = {tensor.shape for tensor in sections.states.get(number, {}).values()}
    return shapes.pop() if len(shapes) == 1 else None


def _rename_params(sections: Sections, mapping: ParameterMapping) -> OptimizerState:
    names = {
        number: name
        for group, group_names in zip(sections.groups, mapping.groups, strict=True)
        for number, name in zip(group.get("params", ()), group_names, strict=True)
    }
    known = {
        number: name
        for number, name in names.items()
        if number in sections.states or number in sections.numbers
    }
    return OptimizerState(
        tensors={name: sections.states.get(number, {}) for number, name in known.items()},
        numbers={name: sections.numbers.get(number, {}) for number, name in known.items()},
        groups=tuple(
            ParamGroup(
                params=tuple(group_names),
                options={key: value for key, value in group.items() if key != "params"},
            )
            for group, group_names in zip(sections.groups, mapping.groups, strict=True)
        ),
    )
