"""Converts torch optimizer state, by number or name, to the neutral form by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    OPTIMIZER_OMITTED,
    FileProblem,
    OptimizerState,
    ParamGroup,
    Tensor,
)
from holdfast.ckpt.files import torch_legacy
from holdfast.ckpt.files.torch_pickle import TensorRef
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.state_dicts import optimizer_params, ties
from holdfast.ckpt.state_dicts.optimizer_params import Shape
from holdfast.ckpt.state_dicts.values import TorchSource, is_plain, simplify
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

#: Scalar states, even for one-element parameters (torch/optim/{adam,nadam,asgd}.py).
SCALAR_STATES = frozenset({"step", "mu_product", "eta", "mu"})
#: Buffers of torch modules (torch/nn/modules/batchnorm.py), never in an optimizer.
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_PARAMETERS = ("weight", "bias")
_OWN = frozenset({"params", "param_names"})
_FLOATS = ("float", "bfloat", "complex")
_SHOWN = 3
_ASK_ORDER = (
    "pass the function that builds the model as --model FILE.py:FUNCTION, or the output of "
    '`print(*dict(model.named_parameters()), sep="\\n")` as --order FILE'
)


class OptimizerResult(msgspec.Struct, frozen=True):
    """The optimizer, or None with a note; and what follows for parameters it does not have."""

    optimizer: OptimizerState | None = None
    frozen: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    ties: Mapping[str, str] = {}
    step: int | Unknown = Unknown("not recorded in this format")
    notes: tuple[str, ...] = ()

    def without_ties(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors without the aliases found."""
        return {name: item for name, item in tensors.items() if name not in self.ties}


class _RawParam(msgspec.Struct):
    """One parameter of a group as stored in the file."""

    key: int | str
    state: Mapping[str, Any]
    source: TorchSource


def is_optimizer(value: Any) -> bool:
    """Return whether ``value`` is the result of ``Optimizer.state_dict()``."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("state"), Mapping)
        and _are_groups(value)
    )


def read_optimizer_states(
    folder: Path, names: Iterable[str]
) -> tuple[list[tuple[TorchSource, Mapping[str, Any]]], list[FileProblem]]:
    """Return the optimizer state_dicts in these files, and problems with unreadable files."""
    states: list[tuple[TorchSource, Mapping[str, Any]]] = []
    problems = []
    for name in names:
        try:
            file = torch_legacy.read_torch_file(folder / name)
        except CheckpointUnreadable as error:
            problems.append(problem_of(error, name, beside=True))
            continue
        if is_optimizer(file.value):
            states.append((TorchSource(file, name), file.value))
    return states, problems


def merge_optimizers(
    root: Path,
    states: Sequence[tuple[TorchSource, Mapping[str, Any]]],
    tensors: Mapping[str, Tensor],
    hints: optimizer_params.MappingHints | None = None,
    *,
    ordered: bool = True,
) -> OptimizerResult:
    """Merge the states of a checkpoint's optimizers into one with all their groups.

    ``ordered``: the tensors are in model order.
    """
    groups, options, names = [], [], []
    for source, state in states:
        for group in state["param_groups"]:
            raw = [_RawParam(item, _param_state(state, item), source) for item in group["params"]]
            groups.append(raw)
            param_names = group.get("param_names")
            names.append(
                param_names
                if isinstance(param_names, list) and len(param_names) == len(raw)
                else [item.key for item in raw]
            )
            options.append({str(k): simplify(source, v) for k, v in group.items() if k not in _OWN})
    several = (f"merged the states of {len(states)} optimizers",) if len(states) > 1 else ()
    step = _common_step(groups)
    if all(isinstance(name, str) for group in names for name in group):
        result = _build_result(
            root,
            groups,
            _align_prefix(tensors, [list(map(str, group)) for group in names]),
            options,
            tensors,
        )
        return msgspec.structs.replace(result, step=step, notes=(*several, *result.notes))
    mapping = _map_params(
        groups, tensors, hints or optimizer_params.MappingHints(), ordered=ordered
    )
    if mapping.why:
        count = sum(map(len, groups))
        why = f"{count:,} numbered parameters without names: {mapping.why}"
        why = f"{OPTIMIZER_OMITTED}: {why}"
        hint = "" if ordered else f" ({_ASK_ORDER})"
        if ordered and count < len(tensors):
            hint = " (--frozen excludes parameters from it)"
        return OptimizerResult(step=step, notes=(*several, why + hint))
    if mapping.assumed:
        listed = ", ".join(mapping.assumed[:_SHOWN]) + (
            ", ..." if len(mapping.assumed) > _SHOWN else ""
        )
        why = f"assumed that the optimizer excludes {listed}, as fits if whole modules are frozen"
        several = (*several, f"{why} (override with --frozen)")
    result = _build_result(root, groups, mapping.groups, options, tensors)
    return msgspec.structs.replace(result, step=step, notes=(*several, *result.notes))


def _common_step(groups: Sequence[Sequence[_RawParam]]) -> int | Unknown:
    """Return the step that all states agree on."""
    stored = [
        (raw.source, raw.state["step"]) for group in groups for raw in group if "step" in raw.state
    ]
    steps_found = [simplify(source, value) for source, value in stored]
    steps = {
        value for value in steps_found if isinstance(value, (int, float)) and math.isfinite(value)
    }
    if len(steps) == 1:
        return int(steps.pop())
    return Unknown(
        "parameters of the optimizer are at different steps"
        if steps
        else "not recorded in this format"
    )


def _align_prefix(
    tensors: Mapping[str, Tensor], names: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """Add a wrapper prefix (``module.``) to the names if the model's names have it."""
    first = next((param_name for group in names for param_name in group), "")
    for name in tensors:
        prefix = name.removesuffix(first)
        if name.endswith(first) and all(
            prefix + param_name in tensors for group in names for param_name in group
        ):
            return tuple(tuple(prefix + param_name for param_name in group) for group in names)
    return tuple(tuple(group) for group in names)


def _map_params(
    groups: Sequence[Sequence[_RawParam]],
    tensors: Mapping[str, Tensor],
    hints: optimizer_params.MappingHints,
    *,
    ordered: bool,
) -> optimizer_params.ParameterMapping:
    shapes = [[_param_shape(item) for item in group] for group in groups]
    possible = {shape for group in shapes for shape in group}
    candidates = [
        (name, tensor.shape)
        for name, tensor in tensors.items()
        if tensor.dtype.startswith(_FLOATS)
        and not name.endswith(_BUFFERS)
        and (None in possible or tensor.shape in possible)
    ]
    left = hints.left(candidates)
    return (
        optimizer_params.map_parameters(left, shapes)
        if ordered or hints.order
        else optimizer_params.map_unordered_parameters(left, shapes)
    )


def _build_result(
    root: Path,
    groups: Sequence[Sequence[_RawParam]],
    names: Sequence[Sequence[str]],
    options: Sequence[Mapping[str, Any]],
    tensors: Mapping[str, Tensor],
) -> OptimizerResult:
    states: dict[str, dict[str, Tensor]] = {}
    numbers: dict[str, dict[str, float | int]] = {}
    odd: set[str] = set()
    for group, named in zip(groups, names, strict=True):
        for raw, name in zip(group, named, strict=True):
            for key, value in ((str(item), value) for item, value in raw.state.items()):
                converted = _convert_state(
                    raw.source, f"{name}.{key}", key, value, tensors.get(name)
                )
                if isinstance(converted, Tensor):
                    states.setdefault(name, {})[key] = converted
                elif isinstance(converted, (int, float)):
                    numbers.setdefault(name, {})[key] = converted
                elif converted is not None:
                    odd.add(key)
    notes: tuple[str, ...] = ()
    if odd:
        notes = (
            f"optimizer states that are neither tensors nor numbers: {', '.join(sorted(odd))}",
        )
    made_groups = [
        ParamGroup(params=tuple(named), options=item)
        for named, item in zip(names, options, strict=True)
    ]
    optimizer_state = OptimizerState(tensors=states, numbers=numbers, groups=tuple(made_groups))
    tied = ties.find_ties(root, tensors, optimizer_state)
    taken = {name for group in names for name in group} | set(tied)
    left = [name for name in tensors if name not in taken] if taken & set(tensors) else []
    frozen = frozenset(name for name in left if name.endswith(_PARAMETERS))
    return OptimizerResult(optimizer_state, frozen, frozenset(left) - frozen, tied, notes=notes)


def _convert_state(
    source: TorchSource, name: str, key: str, value: Any, param: Tensor | None
) -> Any:
    """Return a state as a tensor or a number; otherwise unchanged."""
    if not isinstance(value, TensorRef):
        return value if value is None or is_plain(value) else False
    whole = param is not None and value.shape == param.shape and key not in SCALAR_STATES
    number = None if whole else source.number(value)
    return source.tensor(name, value) if number is None else number


def _param_shape(raw: _RawParam) -> Shape | None:
    """Return the parameter's shape, if all of its tensor states have the same."""
    shapes = {
        item.shape
        for key, item in raw.state.items()
        if isinstance(item, TensorRef) and key not in SCALAR_STATES
    }
    return shapes.pop() if len(shapes) == 1 else None


def _param_state(state: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
    optimizer_state = state["state"].get(key)
    return optimizer_state if isinstance(optimizer_state, Mapping) else {}


def _are_groups(value: Mapping[str, Any]) -> bool:
    groups = value.get("param_groups")
    return isinstance(groups, list) and all(_is_group(group) for group in groups)


def _is_group(value: Any) -> bool:
    keys: Iterator[Any] = iter(value.get("params", ())) if isinstance(value, Mapping) else iter(())
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("params"), list)
        and all(isinstance(key, (int, str)) for key in keys)
    )
