"""What is saved: the tensors of models and optimizers, which belong to the job, and of each rank its own.

The tensors are one nested dict, in the words that ``torch.distributed.checkpoint`` users know::

    {"model": {"layer.weight": …}, "optimizer": {"state": {"layer.weight": {"exp_avg": …}}}, "extra": {"ema": {…}}}

A rank's own is a small file that ``torch.load(weights_only=True)`` reads: random states, groups of the optimizers,
scheduler, scaler, configuration, and what else has a ``state_dict``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from holdfast.errors import BadValue, CheckpointFailed, CheckpointUnreadable
from holdfast.runtime.checkpoint import engines, optimizers, randomness
from holdfast.runtime.checkpoint.names import parameter_names, plain, plain_name, state_of_module
from holdfast.runtime.checkpoint.versions import DTensor

MISSING, OTHER_SHAPE = "missing from the checkpoint", "of another shape"
Models = torch.nn.Module | Mapping[str, torch.nn.Module] | None
Optimizers = torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None


@runtime_checkable
class Stateful(Protocol):
    """What a scheduler, a data loader, a metric has."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, of plain values and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take a state back."""
        ...


@runtime_checkable
class OfAllRanks(Protocol):
    """A stateful object may have this too: it is then given the states that all ranks saved, in their order.

    So it can divide them anew where the number of ranks is another one (a data loader its position, say).
    """

    def load_state_dicts(self, states: list[dict[str, Any]]) -> Any:
        """Take the states of all ranks that saved."""
        ...


class State:
    """The objects that are saved and restored.

    Raises:
        BadValue: a model holds FullyShardedDataParallel.
    """

    def __init__(
        self, model: Models, optimizer: Optimizers, scheduler: Any, scaler: Any, stateful: Mapping[str, Any] | None,
        config: Any,
    ) -> None:  # fmt: skip
        given = _by_name(model)
        self.engines = {name: each for name, each in given.items() if engines.is_engine(each)}
        self.models = {name: each for name, each in given.items() if name not in self.engines}
        self.optimizers = {} if self.engines else _by_name(optimizer)  # an engine saves its own
        extra = dict(stateful or {})
        self.modules = {name: each for name, each in extra.items() if isinstance(each, torch.nn.Module)}
        self.stateful = {name: each for name, each in extra.items() if name not in self.modules}
        self.stateful |= {f".{name}": each for name, each in (("scheduler", scheduler), ("scaler", scaler)) if each}
        self.config = config
        for name, module in (*self.models.items(), *self.modules.items()):
            _refuse_fsdp1(name, module)

    def tensors(self) -> dict[str, Any]:
        """All tensors of the job by name; they are the objects' own, not copies."""
        found = self._modules()
        names = parameter_names(self.models)
        states = {key: optimizers.state_of(each, names) for key, each in self.optimizers.items()}
        _put(found, "optimizer", {key: {"state": state} for key, state in states.items() if state})
        return found

    def _modules(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        _put(found, "model", {key: state_of_module(module) for key, module in self.models.items()})
        _put(found, "extra", {key: state_of_module(module) for key, module in self.modules.items()})
        return found

    def own(self, rank: int, world: int) -> bytes:
        """What this rank alone has.

        Raises:
            CheckpointFailed: a part holds what could not be loaded without running code that stands in the file.
        """
        names = parameter_names(self.models)
        parts: dict[str, Any] = {
            "rank": rank,
            "world": world,
            "random": randomness.taken(),
            "groups": {key: optimizers.groups_of(each, names) for key, each in self.optimizers.items()},
            "config": self.config,
            "stateful": {name: each.state_dict() for name, each in self.stateful.items()},
        }
        data = _packed(parts)
        try:
            unpacked(data)
        except Exception:
            for name, value in {**parts.pop("stateful"), **parts}.items():
                _refuse(name.removeprefix("."), value)
            raise
        return data

    def template(self, index: Metadata) -> dict[str, Any]:
        """Room for all tensors that this job has and the checkpoint may: the models' own, and for optimizers made."""
        found = self._modules()
        names = parameter_names(self.models)
        states = {
            key: optimizers.template(each, names, index, ("optimizer", *([key] if key else []), "state"))
            for key, each in self.optimizers.items()
        }
        _put(found, "optimizer", {key: {"state": state} for key, state in states.items() if state})
        return found

    def give(self, tensors: dict[str, Any], own: dict[str, Any], everyones: list[dict[str, Any]]) -> None:
        """Hand out what was read: ``own`` is this rank's file (rank 0's where it had none), ``everyones`` all of them.

        Raises:
            CheckpointMismatch: an optimizer has other groups.
        """
        for word, modules in (("model", self.models), ("extra", self.modules)):
            for key, module in modules.items():
                _give_module(module, _get(tensors, word, key))
        names = parameter_names(self.models)
        for key, optimizer in self.optimizers.items():
            if key in own["groups"]:
                state = (_get(tensors, "optimizer", key) or {}).get("state", {})
                optimizers.restore(optimizer, names, state, own["groups"][key])
        for name, each in self.stateful.items():
            if isinstance(each, OfAllRanks) and name in everyones[0]["stateful"]:
                each.load_state_dicts([states["stateful"][name] for states in everyones])
            elif name in own["stateful"]:
                each.load_state_dict(own["stateful"][name])


def unpacked(data: bytes, name: object = "a rank's state") -> dict[str, Any]:
    """What :meth:`State.own` made. Raises CheckpointUnreadable."""
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        why = f"it is damaged, or holds more than plain values and tensors: {_named_in(error)}"
        raise CheckpointUnreadable(name, why=why) from error
    if not isinstance(found, dict) or not {"rank", "world", "random", "groups", "config", "stateful"} <= set(found):
        raise CheckpointUnreadable(name, why="it is no state of a rank")
    return found


def mismatches(template: Mapping[str, Any], index: Metadata) -> dict[str, dict[str, str]]:
    """What the job has and the checkpoint has not, and the reverse, and what has other shapes: by kind, name, detail.

    ``template`` is flat. Optimizer state that was never made is no mismatch.
    """
    saved = index.state_dict_metadata
    shapes: dict[str, str] = {}
    for name, value in sorted(template.items()):
        place = saved.get(name)
        if isinstance(value, torch.Tensor) and isinstance(place, TensorStorageMetadata) and place.size != value.shape:
            shapes[name] = f" ({_shape(place.size)} in the checkpoint, {_shape(value.shape)} here)"
    found = {
        MISSING: dict.fromkeys(sorted(set(template) - set(saved)), ""),
        "unknown to this job": dict.fromkeys(sorted(set(saved) - set(template)), ""),
        OTHER_SHAPE: shapes,
    }
    return {kind: names for kind, names in found.items() if names}


def _shape(size: Any) -> str:
    return " x ".join(map(str, size)) or "a single number"


def _refuse_fsdp1(name: str, module: torch.nn.Module) -> None:
    """Its parameters are parts of flat ones, of no shape that another number of ranks, or the optimizer, could use."""
    if any(each.__name__ == "FullyShardedDataParallel" for inner in module.modules() for each in type(inner).__mro__):
        raise BadValue(
            f"the model {name!r} of Checkpoint" if name else "the model of Checkpoint",
            why="it is in FullyShardedDataParallel (FSDP1), which flattens parameters and cannot be saved by name",
            next_step="use torch.distributed.fsdp.fully_shard (FSDP2), or save it with torch.distributed.checkpoint",
        )


def _by_name(given: Any) -> dict[str, Any]:
    return {} if given is None else dict(given) if isinstance(given, Mapping) else {"": given}


def _put(found: dict[str, Any], word: str, parts: dict[str, Any]) -> None:
    if parts:
        found[word] = parts[""] if set(parts) == {""} else parts


def _get(found: dict[str, Any], word: str, key: str) -> Any:
    part = found.get(word)
    return part if not key or part is None else part.get(key)


def _give_module(module: torch.nn.Module, state: dict[str, Any] | None) -> None:
    """Tensors were read into the module's own; what is none, or was a copy, goes the way of load_state_dict."""
    inner = plain(module)
    own = {_address(value) for value in (*inner.parameters(), *inner.buffers())}
    there, rest = inner.state_dict(), {}
    for name in there:
        value = (state or {}).get(plain_name(name), there[name])
        if not isinstance(value, torch.Tensor) or _address(value) not in own:
            rest[name] = value
    if rest:
        inner.load_state_dict({**there, **rest})


def _address(value: torch.Tensor) -> int:
    return (value.to_local() if isinstance(value, DTensor) else value).data_ptr()


def _packed(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _refuse(name: str, value: Any) -> None:
    try:
        torch.load(io.BytesIO(_packed(value)), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointFailed(
            "the save",
            why=f"the state of {name!r} holds more than plain values and tensors: {_named_in(error)}",
            next_step="give a state_dict of numbers, texts, lists, dicts and tensors",
        ) from error


def _named_in(error: Exception) -> str:
    """What torch's long sentence about a refused pickle is about."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return found[1] if found else str(error).strip().partition("\n")[0][:200]
