"""Find uses of a wrapped model that its wrapper does not cover: clipping, steps, generation."""

from __future__ import annotations

import ast
import re

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.abstract_domain.values import Value, is_rank_only
from holdfast.lint.abstract_state.abstract_objects import (
    SHARD,
    LibraryInstance,
    library_class_names,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.bare_models import model_home, model_object
from holdfast.lint.patterns.scopes import child_nodes
from holdfast.lint.sources.modules import last_name

#: Kinds of divergences.
_STATE, _LOOP = "habit-state", "habit-loop"
_FSDP = "wrapped:fsdp"
#: The name of a torch optimizer or scheduler that all ranks create.
OPTIMIZER = "optimizer"
_OPTIMIZER_CLASS = re.compile(r"^torch\.optim\.(?:\w+\.)*[A-Z]\w*$")
#: An optimizer or what changes its steps, by name, and what may send its state to other ranks.
_OPTIMIZER_NAME = re.compile(r"optim|sched(?!uler_config)|scaler|^opt$", re.IGNORECASE)
_SENDS_STATES = re.compile(
    r"broadcast_(?:optimizer|object)|optim_state_dict|broadcast_from_rank0|scatter_|deepspeed"
    r"|fully_?shard|FSDP|load_state\(",
    re.IGNORECASE,
)
#: torch.nn.utils functions that compute the norm of the gradients they get.
_CLIPPING = re.compile(r"^torch\.nn\.utils\.(?:clip_grad\.)?clip_grad_norm_?$")
#: What shows that DeepSpeed shards the parameters, and that a model is sharded by FSDP2, whose
#: tensors compute the norm of all shards.
_STAGE_3 = re.compile(r"[\"']?stage[\"']?\s*[:=]\s*3\b|zero_?(?:stage)?_?3\b|stage3", re.IGNORECASE)
_FSDP2 = re.compile(r"\bfully_shard\b")


def record_wrapped_misuse(state: InterpreterState, call: LibraryCall) -> None:
    """Record a call that treats a wrapped model as if one process had all of it."""
    if _CLIPPING.match(call.name):
        _record_local_norm(state, call)
        _record_lone_step(state, call)
    elif is_optimizer_class(call.name):
        _record_optimized(state, call)
    elif call.name == "step" and call.receiver_class == OPTIMIZER:
        _record_lone_step(state, call)
    elif call.name == "load_state_dict":
        _record_lone_weights(state, call)
        _record_lone_optimizer(state, call)
    elif call.name == "generate":
        _record_generation(state, call)


def is_shared_optimizer(call: LibraryCall) -> bool:
    """Return True if all ranks create an optimizer or scheduler of torch here."""
    control = call.frame.control
    return is_optimizer_class(call.name) and not (control and is_rank_only(control))


def created_optimizer(call: LibraryCall) -> LibraryInstance | None:
    """Return an optimizer that all ranks create, with the mark of one over sharded parameters."""
    if not is_shared_optimizer(call):
        return None
    parameters = call.first("params")
    sharded = {"wrapped:fsdp", SHARD.name} & set(library_class_names(parameters))
    return LibraryInstance(OPTIMIZER, Value(objects=(SHARD,)) if sharded else None)


def is_optimizer_class(name: str) -> bool:
    """Return True for an optimizer or scheduler class of torch."""
    return _OPTIMIZER_CLASS.match(name) is not None


def record_sharded_after(
    state: InterpreterState, call: LibraryCall, *, in_place: bool = False
) -> None:
    """Record a model that FSDP shards after an optimizer got its parameters.

    ``in_place``: the object stays the same, so that only the order in one function shows it.
    Source: torch.distributed.fsdp.FullyShardedDataParallel (2.13.0), docstring: the optimizer must
    be initialized after the module is wrapped; fully_shard replaces parameters by DTensors.
    """
    state.summaries.record_read("<optimized>", "")
    own = None if in_place else model_object(call.arguments.get(0, "module"))
    optimizer = state.optimized_models.get(own) if own is not None else None
    if optimizer is None:
        home = model_home(call.frame, call.arguments.node(0, "module"))
        earlier = state.optimized_models.get(home) if home is not None else None
        at = call.location
        if earlier is not None and earlier.file == at.file and earlier.line < at.line:
            optimizer = earlier
    if optimizer is not None:
        message = (
            f"FSDP replaces the parameters that the optimizer at line {optimizer.line} got: its "
            "steps change tensors that the model does not use; create the optimizer after wrapping"
        )
        _record(state, call, _STATE, message)


def _record_lone_weights(state: InterpreterState, call: LibraryCall) -> None:
    """Record a model that only some ranks load weights into."""
    model = model_object(call.receiver)
    control = call.frame.control
    if model is not None and control and is_rank_only(control) and model not in state.lone_weights:
        state.lone_weights[model] = call.location
        state.summaries.record_write("<weights>", "")


def _record_lone_optimizer(state: InterpreterState, call: LibraryCall) -> None:
    """Record an optimizer or schedule whose state only some ranks load."""
    name = last_name(call.receiver_node) if call.receiver_node is not None else ""
    found = _OPTIMIZER_NAME.search(name)
    control = call.frame.control
    if found is None or not control or not is_rank_only(control) or _sends_states(state):
        return
    message = (
        f"only some ranks load the state of `{name}`: the others go on with a new one, and ranks "
        "make different steps; load it on all ranks, or broadcast it"
    )
    _record(state, call, _STATE, message)


def _sends_states(state: InterpreterState) -> bool:
    """Return True if the program may send the state of an optimizer to the other ranks."""
    return any(_SENDS_STATES.search(module.text) for module in state.modules.values())


def record_unsynchronized_weights(state: InterpreterState, call: LibraryCall) -> None:
    """Record a model that FSDP shards although only some ranks have its weights.

    Source: torch.distributed.fsdp.FullyShardedDataParallel (2.13.0), ``sync_module_states``: it
    broadcasts the module of rank 0; otherwise each rank keeps a shard of its own.
    """
    state.summaries.record_read("<weights>", "")
    model = model_object(call.arguments.get(0, "module"))
    loaded = state.lone_weights.get(model) if model is not None else None
    if loaded is None or "sync_module_states" in call.arguments.named:
        return
    message = (
        f"only some ranks load the weights at line {loaded.line}, and FSDP shards the module of "
        "each rank: pass `sync_module_states=True`, which broadcasts that of rank 0"
    )
    _record(state, call, _STATE, message)


def _record_optimized(state: InterpreterState, call: LibraryCall) -> None:
    node = call.arguments.node(0, "params")
    receiver = getattr(getattr(node, "func", None), "value", None)
    value = state.evaluate(call.frame, receiver) if isinstance(receiver, ast.expr) else None
    if value is None or _wrappers(value):
        return
    for home in (model_home(call.frame, receiver), model_object(value)):
        if home is not None and home not in state.optimized_models:
            state.optimized_models[home] = call.location
            state.summaries.record_write("<optimized>", "")


def _record_local_norm(state: InterpreterState, call: LibraryCall) -> None:
    """Record torch's clipping of an FSDP model, which has a shard of each gradient."""
    value = call.arguments.get(0, "parameters")
    if value is None or not {_FSDP, SHARD.name} & set(library_class_names(value)):
        return
    if any(_FSDP2.search(module.text) for module in state.modules.values()):
        # the norm of DTensors is reduced over their shards
        call.frame.add_effect(
            Operation("clip_grad_norm_", call.location, kind="sharded", may_not_wait=True)
        )
        return
    message = (
        f"{call.name.rpartition('.')[2]} computes the norm of this rank's shards only: each rank "
        "scales its gradients by another factor; call `clip_grad_norm_` of the FSDP model"
    )
    _record(state, call, _STATE, message)


def _record_lone_step(state: InterpreterState, call: LibraryCall) -> None:
    control = call.frame.control
    if control and is_rank_only(control) and not _follows_backward(call):
        message = (
            f"`{state.unparse(call.node)}` runs only on some ranks ({control[0].text}): weights or "
            "learning rates of the ranks drift apart"
        )
        _record(state, call, _STATE, message)


def _follows_backward(call: LibraryCall) -> bool:
    """Return True if the innermost block around a step runs backward: all of training is there."""
    block = child_nodes(call.frame.tree)
    for node in ast.walk(call.frame.tree):
        for field in ("body", "orelse"):
            inner = getattr(node, field, None)
            if isinstance(inner, list) and any(call.node in ast.walk(each) for each in inner):
                block = inner  # ast.walk yields outer blocks first
    return any(
        isinstance(each, ast.Attribute) and each.attr == "backward"
        for statement in block
        for each in ast.walk(statement)
    )


def _record_generation(state: InterpreterState, call: LibraryCall) -> None:
    """Record a generation with sharded parameters that ends when this rank's sequences end.

    Source: transformers GenerationMixin.generate: ``synced_gpus`` defaults to True only if the
    integration of ZeRO-3 or the class of the model itself shows that it is sharded.
    """
    if "synced_gpus" in call.arguments.named or not _is_of_engine(state, call):
        return
    if any(_STAGE_3.search(module.text) for module in state.modules.values()):
        message = (
            "each decoding step gathers the parameters that ZeRO-3 shards, and a rank whose "
            "sequences end early leaves the loop alone; pass `synced_gpus=True`"
        )
        _record(state, call, _LOOP, message)


def _is_of_engine(state: InterpreterState, call: LibraryCall) -> bool:
    """Return True for a method of a DeepSpeed engine or of the model in it."""
    receiver = call.receiver_node
    if isinstance(receiver, ast.Attribute) and receiver.attr == "module":
        receiver = receiver.value
    value = call.receiver if receiver is None else state.evaluate(call.frame, receiver)
    return "deepspeed.Engine" in library_class_names(value)


def _wrappers(value: Value) -> bool:
    return any(name.startswith("wrapped:") for name in library_class_names(value))


def _record(state: InterpreterState, call: LibraryCall, kind: str, message: str) -> None:
    at = call.location
    if call.frame.scope.module.is_test:
        return
    divergence = Divergence(kind, at, at, call.name, (), detail=message, by_name=True)
    state.summaries.current.divergences.setdefault((kind, at), divergence)
