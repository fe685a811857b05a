"""Splits a nested state_dict into model, optimizer and other values.

Users choose the keys; those of PyTorch's documentation, torchtitan, FSDP and Accelerate are known::

    model.<name>                          model; also state_dict, app.model, or bare names
    optimizer.state.<name>.exp_avg        optimizer, nested or flattened into one level
    optimizer.param_groups.0.lr           its groups
    optimizer.param_groups.<name>.lr      its groups, flattened: options per parameter

Everything else is a value by its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.ckpt.contents import OptimizerState, ParamGroup, Tensor
from holdfast.core.findings import Unknown

MODEL_WORDS = frozenset(
    {"model", "models", "state_dict", "model_state_dict", "model_state", "module", "weights"}
)
OPTIMIZER_WORDS = frozenset(
    {
        "optimizer",
        "optim",
        "optimizers",
        "optimizer_state_dict",
        "optim_state_dict",
        "optimizer_state",
        "optimizer_states",
    }
)
_STEP_WORDS = tuple(
    """
    step global_step iteration steps global_steps current_step num_steps
    """.split()
)

_MAX_GROUPS = 1 << 16

KeyPath = tuple[str | int, ...]
#: Reads a scalar tensor as a number; None if it cannot be read.
ReadNumber = Callable[[Tensor], float | int | None]


class Sections(msgspec.Struct):
    """``model`` by name; optimizer ``states``, ``numbers`` and ``groups`` by name or number."""

    model: dict[str, Tensor] = msgspec.field(default_factory=dict)
    states: dict[str | int, dict[str, Tensor]] = msgspec.field(default_factory=dict)
    numbers: dict[str | int, dict[str, float | int]] = msgspec.field(default_factory=dict)
    groups: list[dict[str, Any]] = msgspec.field(default_factory=list)
    values: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def has_optimizer(self) -> bool:
        """Return whether there is optimizer data."""
        return bool(self.states or self.numbers or self.groups)

    @property
    def numbered(self) -> bool:
        """Return whether the optimizer identifies its parameters by number."""
        known: set[str | int] = {*self.states, *self.numbers}
        known |= {item for group in self.groups for item in group.get("params", ())}
        return any(isinstance(index, int) for index in known)

    def optimizer(self) -> OptimizerState | None:
        """Return the optimizer by name; None if there is none or it is numbered."""
        if not self.has_optimizer or self.numbered:
            return None
        groups = tuple(
            ParamGroup(
                params=tuple(map(str, group.get("params", ()))), options=_without(group, "params")
            )
            for group in self.groups
        )
        return OptimizerState(tensors=dict(self.states), numbers=dict(self.numbers), groups=groups)  # type: ignore[arg-type]

    def step(self) -> int | Unknown:
        """Return the step from the values, or from the optimizer if its steps agree.

        Of several, the one nearest to the top: a data loader counts its own steps.
        """
        named = [
            (path.count("."), value)
            for path, value in self.values.items()
            if path.rpartition(".")[2] in _STEP_WORDS
            and isinstance(value, int)
            and not isinstance(value, bool)
        ]
        if named:
            return int(min(named, key=lambda item: item[0])[1])
        steps = {int(item["step"]) for item in self.numbers.values() if "step" in item}
        return steps.pop() if len(steps) == 1 else Unknown("not recorded in the checkpoint")


def split_sections(items: Iterable[tuple[KeyPath, Any]], number: ReadNumber) -> Sections:
    """Split tensors and other values into sections by their paths."""
    sections = Sections()
    entries = [(path, *_find_section(path), value) for path, value in items]
    has_model_section = any(
        section == "model" and isinstance(value, Tensor) for _, section, _, value in entries
    )
    flat: dict[str, dict[str, Any]] = {}
    for path, section, rest, value in entries:
        if section == "optimizer" and _add_optimizer_value(sections, flat, rest, value, number):
            continue
        if isinstance(value, Tensor) and (
            section == "model" or (not has_model_section and section != "optimizer")
        ):
            name = ".".join(map(str, rest))
            sections.model[name] = msgspec.structs.replace(value, name=name)
        elif isinstance(value, Tensor) and not value.shape:
            sections.values[".".join(map(str, path))] = number(value)
        else:
            sections.values[".".join(map(str, path))] = value
    sections.groups += _group_by_options(flat)
    given_names = [item for group in sections.groups for item in group.get("params", ())]
    if any(isinstance(item, int) for item in given_names) or not given_names:
        sections.states = {_to_int(key): value for key, value in sections.states.items()}
        sections.numbers = {_to_int(key): value for key, value in sections.numbers.items()}
    return sections


def _to_int(key: str | int) -> str | int:
    """Undo flattening, which turns numbers into text."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 10 else key


def split_key(key: str) -> KeyPath:
    """Return the path of a key of which only the joined form is known."""
    first, _, rest = key.partition(".")
    return (first, rest) if rest and first in MODEL_WORDS | OPTIMIZER_WORDS else (key,)


def _find_section(path: KeyPath) -> tuple[str, KeyPath]:
    """Return ``model``, ``optimizer`` or '', and the path below that key."""
    for at, word in enumerate(path[:2]):
        if len(path) > at + 1 and word in MODEL_WORDS:
            return "model", path[at + 1 :]
        if len(path) > at + 1 and word in OPTIMIZER_WORDS:
            return "optimizer", path[at + 1 :]
    return "", path


def _add_optimizer_value(
    sections: Sections,
    flat: dict[str, dict[str, Any]],
    rest: KeyPath,
    value: Any,
    number: ReadNumber,
) -> bool:
    """Add one optimizer value; return False if its form is unknown."""
    rest = _split_flattened(rest)
    if rest[0] not in ("state", "param_groups") and len(rest) > 1:
        rest = _split_flattened(rest[1:])  # several named optimizers
    if len(rest) < len(("word", "which", "key")):
        return False
    word, which, name = rest[0], rest[1], ".".join(map(str, rest[2:]))
    if isinstance(value, Tensor) and not value.shape:
        value = number(value)
    if word == "param_groups":
        return _add_group_value(sections.groups, flat, which, name, value)
    if isinstance(value, Tensor):
        sections.states.setdefault(which, {})[name] = msgspec.structs.replace(
            value, name=f"{which}.{name}"
        )
    elif isinstance(value, (int, float)):
        sections.numbers.setdefault(which, {})[name] = value
    return isinstance(value, (Tensor, int, float)) or value is None


def _add_group_value(
    groups: list[dict[str, Any]],
    flat: dict[str, dict[str, Any]],
    which: str | int,
    name: str,
    value: Any,
) -> bool:
    names_nothing = name == "params" and not (
        isinstance(value, (list, tuple)) and all(isinstance(item, (int, str)) for item in value)
    )
    if isinstance(which, str):
        flat.setdefault(which, {})[name] = value
    elif which >= _MAX_GROUPS or names_nothing:
        return False
    else:
        groups += [{} for _ in range(which + 1 - len(groups))]
        groups[which][name] = value
    return True


def _split_flattened(rest: KeyPath) -> KeyPath:
    """Split flattened keys (``state.<name>.exp_avg``) into three components."""
    head = rest[0]
    if isinstance(head, str):
        for word in ("state", "param_groups"):
            if head.startswith(f"{word}.") and "." in head[len(word) + 1 :]:
                name, _, key = head[len(word) + 1 :].rpartition(".")
                return (word, name, key, *rest[1:])
    return rest


def _group_by_options(flat: Mapping[str, Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
    """Group parameters with equal options, in order of first occurrence."""
    groups: dict[str, dict[str, Any]] = {}
    for name, options in flat.items():
        mark = repr(sorted(options.items(), key=lambda item: item[0]))
        groups.setdefault(mark, {**options, "params": []})["params"].append(name)
    return list(groups.values())


def _without(group: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != key}
