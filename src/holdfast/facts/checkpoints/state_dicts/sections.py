"""Which part of a nested state_dict is the model's, which the optimizer's, and which is neither.

Users put both under words of their own choice; the words that PyTorch's documentation, torchtitan, FSDP and Accelerate
use are known here::

    model.<name>                                      the model; also state_dict, app.model, or the names without a word
    optimizer.state.<name>.exp_avg                    the optimizer, nested, or flattened into one level of keys
    optimizer.param_groups.0.lr                       its groups
    optimizer.param_groups.<name>.lr                  its groups, flattened: a set of options for each parameter

Everything else is a value by its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.facts.checkpoints.contents import Group, Optimizer, Tensor
from holdfast.findings import Unknown

MODEL_WORDS = frozenset({"model", "models", "state_dict", "model_state_dict", "model_state", "module", "weights"})
OPTIMIZER_WORDS = frozenset({
    "optimizer", "optim", "optimizers", "optimizer_state_dict", "optim_state_dict", "optimizer_state",
    "optimizer_states",
})  # fmt: skip
_STEP_WORDS = ("step", "global_step", "iteration", "steps", "global_steps", "current_step", "num_steps")

_MOST_GROUPS = 1 << 16

Path = tuple[str | int, ...]
#: A tensor without dimensions as a number; None where it cannot be read.
Number = Callable[[Tensor], float | int | None]


class Sections(msgspec.Struct):
    """``model`` by name; ``states``, ``numbers`` and ``groups`` of the optimizer by name or number of the parameter."""

    model: dict[str, Tensor] = msgspec.field(default_factory=dict)
    states: dict[str | int, dict[str, Tensor]] = msgspec.field(default_factory=dict)
    numbers: dict[str | int, dict[str, float | int]] = msgspec.field(default_factory=dict)
    groups: list[dict[str, Any]] = msgspec.field(default_factory=list)
    values: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def has_optimizer(self) -> bool:
        """Something of an optimizer is there."""
        return bool(self.states or self.numbers or self.groups)

    @property
    def numbered(self) -> bool:
        """The optimizer knows its parameters by number."""
        known: set[str | int] = {*self.states, *self.numbers}
        known |= {each for group in self.groups for each in group.get("params", ())}
        return any(isinstance(each, int) for each in known)

    def optimizer(self) -> Optimizer | None:
        """It, by names; None where there is none, or where it has numbers."""
        if not self.has_optimizer or self.numbered:
            return None
        groups = tuple(
            Group(params=tuple(map(str, group.get("params", ()))), options=_without(group, "params"))
            for group in self.groups
        )
        return Optimizer(tensors=dict(self.states), numbers=dict(self.numbers), groups=groups)  # type: ignore[arg-type]

    def step(self) -> int | Unknown:
        """What the values say, else what all of the optimizer's own steps say."""
        for path, value in self.values.items():
            if path.rpartition(".")[2] in _STEP_WORDS and isinstance(value, int) and not isinstance(value, bool):
                return value
        steps = {int(each["step"]) for each in self.numbers.values() if "step" in each}
        return steps.pop() if len(steps) == 1 else Unknown("nothing in it says so")


def sorted_out(items: Iterable[tuple[Path, Any]], number: Number) -> Sections:
    """Sort what stands at each path: tensors, and values that are none."""
    found = Sections()
    given = [(path, *_section(path), value) for path, value in items]
    worded = any(section == "model" and isinstance(value, Tensor) for _, section, _, value in given)
    flat: dict[str, dict[str, Any]] = {}
    for path, section, rest, value in given:
        if section == "optimizer" and _taken(found, flat, rest, value, number):
            continue
        if isinstance(value, Tensor) and (section == "model" or (not worded and section != "optimizer")):
            name = ".".join(map(str, rest))
            found.model[name] = msgspec.structs.replace(value, name=name)
        elif isinstance(value, Tensor) and not value.shape:
            found.values[".".join(map(str, path))] = number(value)
        else:
            found.values[".".join(map(str, path))] = value
    found.groups += _regrouped(flat)
    given_names = [each for group in found.groups for each in group.get("params", ())]
    if any(isinstance(each, int) for each in given_names) or not given_names:
        found.states = {_as_number(key): value for key, value in found.states.items()}
        found.numbers = {_as_number(key): value for key, value in found.numbers.items()}
    return found


def _as_number(key: str | int) -> str | int:
    """Flattening has made texts of numbers."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 10 else key


def split(key: str) -> Path:
    """The path of a key of which only the joined form is known."""
    first, _, rest = key.partition(".")
    return (first, rest) if rest and first in MODEL_WORDS | OPTIMIZER_WORDS else (key,)


def _section(path: Path) -> tuple[str, Path]:
    """``model``, ``optimizer`` or '', and the path below that word."""
    for at, word in enumerate(path[:2]):
        if len(path) > at + 1 and word in MODEL_WORDS:
            return "model", path[at + 1 :]
        if len(path) > at + 1 and word in OPTIMIZER_WORDS:
            return "optimizer", path[at + 1 :]
    return "", path


def _taken(found: Sections, flat: dict[str, dict[str, Any]], rest: Path, value: Any, number: Number) -> bool:
    """Put one thing of an optimizer where it belongs; False: it is of no form that is known."""
    rest = _nested(rest)
    if rest[0] not in ("state", "param_groups") and len(rest) > 1:
        rest = _nested(rest[1:])  # several optimizers, each under a name
    if len(rest) < len(("word", "which", "key")):
        return False
    word, which, name = rest[0], rest[1], ".".join(map(str, rest[2:]))
    if isinstance(value, Tensor) and not value.shape:
        value = number(value)
    if word == "param_groups":
        return _grouped(found.groups, flat, which, name, value)
    if isinstance(value, Tensor):
        found.states.setdefault(which, {})[name] = msgspec.structs.replace(value, name=f"{which}.{name}")
    elif isinstance(value, (int, float)):
        found.numbers.setdefault(which, {})[name] = value
    return isinstance(value, (Tensor, int, float)) or value is None


def _grouped(
    groups: list[dict[str, Any]], flat: dict[str, dict[str, Any]], which: str | int, name: str, value: Any
) -> bool:
    if isinstance(which, str):
        flat.setdefault(which, {})[name] = value
    elif which >= _MOST_GROUPS:
        return False
    else:
        groups += [{} for _ in range(which + 1 - len(groups))]
        groups[which][name] = value
    return True


def _nested(rest: Path) -> Path:
    """Keys that were flattened into one (``state.<name>.exp_avg``) as the three they stand for."""
    head = rest[0]
    if isinstance(head, str):
        for word in ("state", "param_groups"):
            if head.startswith(f"{word}.") and "." in head[len(word) + 1 :]:
                name, _, key = head[len(word) + 1 :].rpartition(".")
                return (word, name, key, *rest[1:])
    return rest


def _regrouped(flat: Mapping[str, Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
    """Groups of the parameters whose options are the same, in the order in which they come."""
    made: dict[str, dict[str, Any]] = {}
    for name, options in flat.items():
        mark = repr(sorted(options.items(), key=lambda each: each[0]))
        made.setdefault(mark, {**options, "params": []})["params"].append(name)
    return list(made.values())


def _without(group: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != key}
