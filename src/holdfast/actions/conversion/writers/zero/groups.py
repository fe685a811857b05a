"""Which tensors ZeRO divides: those that are trained, by group of the optimizer; the others stay whole.

DeepSpeed has no names in its flat buffers. A checkpoint fits an engine only if its optimizer has the same groups with
the same parameters in the same order, as the source has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.actions.conversion.options import Options
from holdfast.facts.checkpoints.contents import Contents, Group, Optimizer, Tensor
from holdfast.facts.checkpoints.state_dicts.values import is_plain

#: What ZeRO keeps weights and moments in, whatever the model computes in.
MASTER = "float32"
#: Buffers of torch's and of common models' layers, told by their last name where the source does not tell them.
_BUFFERS = frozenset(
    {"running_mean", "running_var", "num_batches_tracked", "inv_freq", "position_ids", "token_type_ids"}
)
_NOT_OPTIONS = frozenset({"params", "param_names"})


class FlatGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of the optimizer: its parameters in order, their states by name, and the numbers that count for all."""

    params: tuple[Tensor, ...]
    options: Mapping[str, Any]
    states: Mapping[str, Mapping[str, Tensor]] = {}
    numbers: Mapping[str, float | int] = {}

    @property
    def numel(self) -> int:
        """Elements of all of them."""
        return sum(each.numel for each in self.params)


class Laid(msgspec.Struct, frozen=True, kw_only=True):
    """The model as ZeRO sees it. ``losses`` are sentences about what of the source it cannot keep."""

    groups: tuple[FlatGroup, ...]
    frozen: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    optimizer: bool
    losses: tuple[str, ...]

    @property
    def trained(self) -> Iterator[Tensor]:
        """The parameters of all groups."""
        return (each for group in self.groups for each in group.params)


def lay(contents: Contents, options: Options) -> Laid:
    """Sort the tensors out. Without an optimizer, all parameters that are not known to be frozen make one group."""
    optimizer = contents.optimizer if options.optimizer else None
    losses: list[str] = []
    groups = tuple(_groups(contents, optimizer, losses))
    trained = {each.name for group in groups for each in group.params}
    rest = [each for each in contents.tensors.values() if each.name not in trained]
    buffers = tuple(each for each in rest if _is_buffer(each, contents))
    frozen = tuple(each for each in rest if not _is_buffer(each, contents))
    losses += _told(contents, groups, frozen)
    return Laid(groups=groups, frozen=frozen, buffers=buffers, optimizer=optimizer is not None, losses=tuple(losses))


def _groups(contents: Contents, optimizer: Optimizer | None, losses: list[str]) -> Iterator[FlatGroup]:
    if optimizer is None:
        params = tuple(each for each in contents.tensors.values() if _may_train(each, contents))
        if params:
            yield FlatGroup(params=params, options={})
        return
    seen: set[str] = set()
    for group in optimizer.groups or (_only_group(contents, optimizer, losses),):
        names = dict.fromkeys(contents.ties.get(name, name) for name in group.params)
        absent = [name for name in names if name not in contents.tensors]
        if absent:
            losses.append(
                f"The optimizer has parameters that the model has not; they are not in it: {listing(absent)}."
            )
        found = [contents.tensors[name] for name in names if name not in seen and name not in absent]
        seen.update(names)
        params = tuple(
            each for each in found if each.name not in contents.frozen and each.numel and _has_fraction(each)
        )
        if params:
            yield _flat_group(contents, optimizer, group, params, losses)


def _only_group(contents: Contents, optimizer: Optimizer, losses: list[str]) -> Group:
    losses.append(
        "The source does not say the optimizer's groups: one of all its parameters was written, without options."
    )
    return Group(params=tuple(name for name in contents.tensors if name in optimizer.tensors), options={})


def _flat_group(
    contents: Contents, optimizer: Optimizer, group: Group, params: tuple[Tensor, ...], losses: list[str]
) -> FlatGroup:
    """What ZeRO can keep of a group: states of the parameters' own shapes, and numbers that are those of all."""
    states: dict[str, dict[str, Tensor]] = {}
    odd: dict[str, str] = {}
    for param in params:
        for key, state in optimizer.tensors.get(param.name, {}).items():
            if state.shape == param.shape:
                states.setdefault(key, {})[param.name] = state
            else:
                odd.setdefault(key, param.name)
    for key, name in odd.items():
        losses.append(f"{key} of {name} is not in it: ZeRO keeps states of the parameter's own shape.")
    numbers = _numbers(contents, optimizer, params, losses) if states else {}
    kept = {key: value for key, value in group.options.items() if key not in _NOT_OPTIONS}
    unplain = [key for key, value in kept.items() if not is_plain(value)]
    if unplain:
        losses.append(f"Options of the optimizer that are no plain values are not in it: {listing(unplain)}.")
    plain = {key: value for key, value in kept.items() if key not in unplain}
    return FlatGroup(params=params, options=plain, states=states, numbers=numbers)


def _numbers(
    contents: Contents, optimizer: Optimizer, params: Iterable[Tensor], losses: list[str]
) -> dict[str, float | int]:
    """One ``step`` for a whole group, as its flat buffer has one; the largest where they differ."""
    made: dict[str, float | int] = {}
    for param in params:
        for key, value in optimizer.numbers.get(param.name, {}).items():
            if key in made and made[key] != value:
                why = "ZeRO keeps one for a whole group, and the largest was written"
                losses.append(
                    f"{key} of {param.name} is {min(value, made[key])}, of others {max(value, made[key])}: {why}."
                )
            made[key] = max(value, made.get(key, value))
    if "step" not in made and isinstance(contents.step, int):
        made["step"] = contents.step
    return made


def _is_buffer(tensor: Tensor, contents: Contents) -> bool:
    """Of what is in no group of the optimizer: a buffer, or else a frozen parameter."""
    if tensor.name in contents.buffers or tensor.name in contents.frozen:
        return tensor.name in contents.buffers
    return not _has_fraction(tensor) or not tensor.shape or tensor.name.rpartition(".")[2] in _BUFFERS


def _may_train(tensor: Tensor, contents: Contents) -> bool:
    if tensor.name in contents.frozen or tensor.name in contents.buffers or not tensor.numel:
        return False
    return _has_fraction(tensor) and tensor.name.rpartition(".")[2] not in _BUFFERS


def _has_fraction(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("float", "bfloat"))


def _told(contents: Contents, groups: tuple[FlatGroup, ...], frozen: tuple[Tensor, ...]) -> Iterator[str]:
    """What somebody who loads it has to know."""
    kept = [each for group in groups for states in (group.states,) for of in states.values() for each in of.values()]
    double = dict.fromkeys(
        each.name for each in [*(p for g in groups for p in g.params), *kept] if each.dtype == "float64"
    )
    if double:
        yield f"These are float64 in the source, and rounded to {MASTER}, which ZeRO keeps: {listing(double)}."
    if contents.optimizer is not None:
        guessed = [each.name for each in frozen if each.name not in contents.frozen]
        if guessed:
            yield f"The source does not say what these are; they were taken for frozen parameters: {listing(guessed)}."


def listing(names: Iterable[str], most: int = 5) -> str:
    """Some of the names, and how many there are besides."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def step_of(contents: Contents, laid: Laid) -> int:
    """Steps that were made: those of the run, or else of the optimizer."""
    if isinstance(contents.step, int):
        return contents.step
    steps = [each.numbers["step"] for each in laid.groups if "step" in each.numbers]
    return math.floor(max(steps, default=0))
