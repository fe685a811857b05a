"""What is saved: the job's model and optimizer tensors, and each rank's own state.

The tensors form one nested dict, named as in ``torch.distributed.checkpoint``::

    {"model": {"layer.weight": …}, "optimizer": {"state": {"layer.weight": {"exp_avg": …}}}, …}

A rank's own state is a small file that ``torch.load(weights_only=True)`` reads: random states,
optimizer groups, scheduler, scaler, configuration, and every other object with a ``state_dict``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from holdfast.core.errors import CheckpointFailed, CheckpointUnreadable, InvalidValue
from holdfast.training.checkpoint import deepspeed_engines, optimizers, rng_state
from holdfast.training.checkpoint.parameter_names import (
    parameter_names,
    state_of_module,
    unwrap,
    unwrapped_name,
)
from holdfast.training.checkpoint.torch_versions import DTensor

MISSING, OTHER_SHAPE = "missing from the checkpoint", "of another shape"
Models = torch.nn.Module | Mapping[str, torch.nn.Module] | None
Optimizers = torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None


@runtime_checkable
class Stateful(Protocol):
    """The interface of schedulers, data loaders and metrics."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as plain values and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore a state."""
        ...


@runtime_checkable
class MultiRankStateful(Protocol):
    """A stateful object that restores from the states of all ranks, in rank order.

    This lets it redistribute them when the number of ranks changes (a data loader's position).
    """

    def load_state_dicts(self, states: list[dict[str, Any]]) -> Any:
        """Restore from the states of all ranks that saved."""
        ...


class TrainingState:
    """The objects that are saved and restored.

    Raises:
        InvalidValue: a model contains FullyShardedDataParallel.
    """

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers,
        scheduler: Any,
        scaler: Any,
        stateful: Mapping[str, Any] | None,
        config: Any,
    ) -> None:
        models = _by_name(model)
        self.engines = {
            name: each for name, each in models.items() if deepspeed_engines.is_engine(each)
        }
        self.models = {name: each for name, each in models.items() if name not in self.engines}
        # An engine saves its own optimizer.
        self.optimizers = {} if self.engines else _by_name(optimizer)
        extra = dict(stateful or {})
        self.modules = {
            name: each for name, each in extra.items() if isinstance(each, torch.nn.Module)
        }
        self.stateful = {name: each for name, each in extra.items() if name not in self.modules}
        self.stateful |= {
            f".{name}": each
            for name, each in (("scheduler", scheduler), ("scaler", scaler))
            if each
        }
        self.config = config
        for name, module in (*self.models.items(), *self.modules.items()):
            _refuse_fsdp1(name, module)

    def tensors(self) -> dict[str, Any]:
        """Return all tensors of the job by name; not copies."""
        sections = self._modules()
        names = parameter_names(self.models)
        states = {key: optimizers.state_of(each, names) for key, each in self.optimizers.items()}
        _put_section(
            sections, "optimizer", {key: {"state": state} for key, state in states.items() if state}
        )
        return sections

    def _modules(self) -> dict[str, Any]:
        sections: dict[str, Any] = {}
        _put_section(
            sections, "model", {key: state_of_module(module) for key, module in self.models.items()}
        )
        _put_section(
            sections,
            "extra",
            {key: state_of_module(module) for key, module in self.modules.items()},
        )
        return sections

    def rank_state(self, rank: int, world: int) -> bytes:
        """Serialize this rank's own state.

        Raises:
            CheckpointFailed: part of it could not be loaded without executing code from the file.
        """
        names = parameter_names(self.models)
        values: dict[str, Any] = {
            "rank": rank,
            "world": world,
            "random": rng_state.capture(),
            "groups": {
                key: optimizers.parameter_groups_of(each, names)
                for key, each in self.optimizers.items()
            },
            "config": self.config,
            "stateful": {name: each.state_dict() for name, each in self.stateful.items()},
        }
        data = _pack(values)
        try:
            unpack_rank_state(data)
        except Exception:
            for name, value in {**values.pop("stateful"), **values}.items():
                _check_loadable(name.removeprefix("."), value)
            raise
        return data

    def template(self, index: Metadata) -> dict[str, Any]:
        """Return tensors to read into: the models' own, and allocated ones for optimizer state."""
        sections = self._modules()
        names = parameter_names(self.models)
        states = {
            key: optimizers.template(
                each, names, index, ("optimizer", *([key] if key else []), "state")
            )
            for key, each in self.optimizers.items()
        }
        _put_section(
            sections, "optimizer", {key: {"state": state} for key, state in states.items() if state}
        )
        return sections

    def restore(
        self,
        tensors: dict[str, Any],
        rank_state: dict[str, Any],
        all_rank_states: list[dict[str, Any]],
    ) -> None:
        """Restore from ``tensors`` and this rank's file (rank 0's if it has none).

        ``all_rank_states`` holds the files of all ranks.

        Raises:
            CheckpointMismatch: an optimizer has other groups.
        """
        for section, modules in (("model", self.models), ("extra", self.modules)):
            for key, module in modules.items():
                _load_module(module, _get_section(tensors, section, key))
        names = parameter_names(self.models)
        for key, optimizer in self.optimizers.items():
            if key in rank_state["groups"]:
                state = (_get_section(tensors, "optimizer", key) or {}).get("state", {})
                optimizers.restore(optimizer, names, state, rank_state["groups"][key])
        for name, each in self.stateful.items():
            if isinstance(each, MultiRankStateful) and name in all_rank_states[0]["stateful"]:
                each.load_state_dicts([states["stateful"][name] for states in all_rank_states])
            elif name in rank_state["stateful"]:
                each.load_state_dict(rank_state["stateful"][name])


def unpack_rank_state(data: bytes, name: object = "a rank's state") -> dict[str, Any]:
    """Deserialize the output of :meth:`JobState.rank_state`. Raises CheckpointUnreadable."""
    try:
        rank_state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        why = f"damaged, or not only plain values and tensors: {_refused_name(error)}"
        raise CheckpointUnreadable(name, why=why) from error
    if not isinstance(rank_state, dict) or not {
        "rank",
        "world",
        "random",
        "groups",
        "config",
        "stateful",
    } <= set(rank_state):
        raise CheckpointUnreadable(name, why="not a rank state file")
    return rank_state


def find_mismatches(template: Mapping[str, Any], index: Metadata) -> dict[str, dict[str, str]]:
    """Return missing, unknown and differently shaped entries: by kind, then name, with a detail.

    ``template`` is flat. Optimizer state that was never created is not a mismatch.
    """
    saved = index.state_dict_metadata
    shapes: dict[str, str] = {}
    for name, value in sorted(template.items()):
        saved_entry = saved.get(name)
        if (
            isinstance(value, torch.Tensor)
            and isinstance(saved_entry, TensorStorageMetadata)
            and saved_entry.size != value.shape
        ):
            shapes[name] = (
                f" ({_describe_shape(saved_entry.size)} in the checkpoint, "
                f"{_describe_shape(value.shape)} here)"
            )
    mismatches = {
        MISSING: dict.fromkeys(sorted(set(template) - set(saved)), ""),
        "unknown to this job": dict.fromkeys(sorted(set(saved) - set(template)), ""),
        OTHER_SHAPE: shapes,
    }
    return {kind: names for kind, names in mismatches.items() if names}


def _describe_shape(size: Any) -> str:
    return " x ".join(map(str, size)) or "scalar"


def _refuse_fsdp1(name: str, module: torch.nn.Module) -> None:
    """Reject FSDP1, whose flat parameters have no shapes that other world sizes could use."""
    if any(
        each.__name__ == "FullyShardedDataParallel"
        for inner in module.modules()
        for each in type(inner).__mro__
    ):
        raise InvalidValue(
            f"the model {name!r} of Checkpoint" if name else "the model of Checkpoint",
            why="FullyShardedDataParallel (FSDP1) flattens parameters and cannot be saved by name",
            next_step="use torch.distributed.fsdp.fully_shard (FSDP2), or save it with "
            "torch.distributed.checkpoint",
        )


def _by_name(value: Any) -> dict[str, Any]:
    return {} if value is None else dict(value) if isinstance(value, Mapping) else {"": value}


def _put_section(sections: dict[str, Any], section: str, values: dict[str, Any]) -> None:
    if values:
        sections[section] = values[""] if set(values) == {""} else values


def _get_section(sections: dict[str, Any], section: str, key: str) -> Any:
    part = sections.get(section)
    return part if not key or part is None else part.get(key)


def _load_module(module: torch.nn.Module, state: dict[str, Any] | None) -> None:
    """Load what is not read in place: non-tensors, and tensors that state_dict copies."""
    inner = unwrap(module)
    own_addresses = {_address(value) for value in (*inner.parameters(), *inner.buffers())}
    current, rest = inner.state_dict(), {}
    for name in current:
        value = (state or {}).get(unwrapped_name(name), current[name])
        if not isinstance(value, torch.Tensor) or _address(value) not in own_addresses:
            rest[name] = value
    if rest:
        inner.load_state_dict({**current, **rest})


def _address(value: torch.Tensor) -> int:
    return (value.to_local() if isinstance(value, DTensor) else value).data_ptr()


def _pack(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _check_loadable(name: str, value: Any) -> None:
    try:
        torch.load(io.BytesIO(_pack(value)), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointFailed(
            "the save",
            why=f"the state of {name!r} is not only plain values and tensors: "
            f"{_refused_name(error)}",
            next_step="return a state_dict of numbers, strings, lists, dicts and tensors",
        ) from error


def _refused_name(error: Exception) -> str:
    """Extract the refused class from torch's long message about a pickle."""
    match = re.search(r"GLOBAL (\S+)", str(error))
    return match[1] if match else str(error).strip().partition("\n")[0][:200]
