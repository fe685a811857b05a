"""Methods of objects outside of the program: containers, tensors, paths, scalers, frameworks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.lint import library, varying_values
from holdfast.lint.abstract_domain.effects import GroupScope, Marker, Operation
from holdfast.lint.abstract_domain.values import (
    DICTS,
    RANK_OR_SELECTED,
    UNIFORM,
    UNKNOWN,
    TaintKind,
    Value,
    combine_values,
    merge_length,
    merge_taint,
    persistent_taint,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    ATTRIBUTES,
    BATCH,
    CONFIGURED_MODEL,
    MASK,
    RANK_TEXT,
    ClassObject,
    DeviceMesh,
    FunctionObject,
    Instance,
    LibraryInstance,
    as_text,
    dict_entries,
    guard_callables,
    is_callable,
    library_class_names,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall, positional_arguments
from holdfast.lint.abstract_state.elements import (
    held_data,
)
from holdfast.lint.abstract_state.mutations import (
    change_in_place,
    key_taint,
    mutate,
    sort_in_place,
    updated_dict,
)
from holdfast.lint.abstract_state.process_stamps import (
    stamps_of,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence import alarms
from holdfast.lint.divergence.bare_models import record_bare_backward
from holdfast.lint.divergence.collectives import enter_collective, is_of_subgroup
from holdfast.lint.divergence.divided_sums import keep_sums
from holdfast.lint.divergence.long_work import record_work
from holdfast.lint.library_models import (
    dict_methods,
    frameworks,
    own_files,
    random_numbers,
    tensor_methods,
)
from holdfast.lint.library_models.classes import library_base, run_thread
from holdfast.lint.library_models.meshes import mesh_method
from holdfast.lint.library_models.records import update_attributes
from holdfast.lint.library_models.selection import SELECTING, selection_taint
from holdfast.lint.library_models.training_mode import evaluate_model, train_model
from holdfast.lint.patterns.sharded_saves import saves_whole_models
from holdfast.lint.sources.modules import dotted_name, last_name

_CONTAINER_METHODS = frozenset({
    "append", "extend", "add", "update", "insert", "setdefault", "appendleft", "pop", "remove",
    "clear",
})  # fmt: skip
#: Methods of a tensor that compute its new content from their arguments.
_IN_PLACE = re.compile(r"(?:add|sub|mul|div|copy|fill|lerp|addcmul|addcdiv|index_add)_")
_BOUND_NAME = re.compile(r"threshold|limit|toleran|\bmax_|\bmin_|(^|\.)(config|args|cfg)\.")
_NORM_NAME = re.compile(r"(?:grad|total|global)\w*_norm$")
#: Classes that shard a model if they are configured to.
_CONFIGURED_CLASSES = frozenset(
    {"accelerate.Accelerator", "transformers.Trainer", CONFIGURED_MODEL.name}
)
#: Methods that move a tensor to another device and keep its content.
_DEVICE_METHODS = frozenset({"to", "cuda"})
#: Methods whose result on a rank-specific name is the same on all ranks.
_TEXT_METHODS = frozenset(
    {"startswith", "endswith", "strip", "split", "rsplit", "partition", "rpartition", "lower"}
)
_AFFIX_METHODS = frozenset({"startswith", "endswith"})
#: Kinds that do not affect the prefix or suffix of a name.
_SELECTED_KINDS = frozenset({TaintKind.OWN})
#: Names of rank-local batch data.
_LOCAL_DATA_NAME = re.compile(
    r"(?:^|_)(?:labels?|targets?|gts?|gt_?\w*|boxes|bboxes|masks?|pos|positives?|valid|kl|finished"
    r"|done|unfinished)(?:_|$)"
)
#: Methods that reduce a tensor's content to a value.
_VALUE_METHODS = frozenset({"any", "all", "item", "sum", "max", "min", "count_nonzero"})
#: Methods of times whose result is a number.
_NUMBER_METHODS = frozenset({"total_seconds", "timestamp", "timetuple", "toordinal", "weekday"})
#: Methods that return a scalar if called without arguments.
_REDUCING_METHODS = frozenset(
    {"sum", "nansum", "mean", "nanmean", "norm", "item", "max", "min", "prod", "std", "var"}
)
#: What a script contains that trains on several ranks.
_SEVERAL_RANKS = re.compile(r"distributed|rank|ccelerat|ightning|deepspeed|DDP|FSDP|Trainer|dist\b")
#: Names of environments of reinforcement learning.
_ENVIRONMENT = re.compile(r"(?:^|_)envs?$|(?:^|_)environment$")
#: Methods of a model's output whose result can run the whole backward.
_DIFFERENTIABLE_METHODS = frozenset(
    {"sum", "mean", "pow", "log", "float", "to", "train", "eval", "cuda", "half", "exp", "abs"}
)


def method_call(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the result of a library method; None if the receiver is unknown."""
    kind = (
        "torch.distributed.fsdp" if call.receiver_class == "wrapped:fsdp" else call.receiver_class
    )
    collective = library.METHODS.get(kind, {}).get(call.name)
    if collective is None and not kind and not is_of_subgroup(call):
        collective = library.UNIQUE_METHODS.get(call.name)
    if collective is not None:
        return _enter(state, call, collective, kind)
    if kind.startswith("output:") and call.name == "backward":
        if not record_bare_backward(state, call, call.receiver):
            op = Operation("backward", call.location, GroupScope.WORLD, "backward")
            call.frame.add_effect(op)
        return UNIFORM
    if call.name in _CONTAINER_METHODS and call.receiver_node is not None:
        return _container_call(state, call)
    if call.name in varying_values.GUARDS and any(map(is_callable, call.first("function").objects)):
        guard = state.taint_source(call.frame, varying_values.GUARDS[call.name], call.node)
        return guard_callables(call.first("function"), guard)
    answer = _varying_answer(state, call)
    if answer is not None:
        return answer
    model = _METHOD_MODELS.get(call.name)
    value = model(state, call) if model is not None else None
    return value if value is not None else _unlisted_method(state, call)


def _enter(
    state: InterpreterState, call: LibraryCall, collective: library.CollectiveCall, kind: str
) -> Value:
    if saves_whole_models(call.frame.scope.module, call.name, call.location.line):
        return UNKNOWN
    return call_collective(state, call, collective, may_not_wait=_may_be_whole(call, kind))


def _may_be_whole(call: LibraryCall, kind: str) -> bool:
    """Return True if the model need not be sharded: by the configuration, or on another path."""
    return (
        kind in _CONFIGURED_CLASSES
        or call.name == "clip_gradients"
        or any(not isinstance(obj, LibraryInstance) for obj in call.receiver.objects)
    )


def call_collective(
    state: InterpreterState,
    call: LibraryCall,
    collective: library.CollectiveCall,
    *,
    may_not_wait: bool = False,
) -> Value:
    """Enter a collective, unless a flag has, or may have, the value with which none is entered."""
    for flag, value in collective.unless:
        passed = call.arguments.get(collective.parameters.index(flag), flag)
        if passed is not None and passed.const is not (not value):
            return UNKNOWN
    may_not_wait = may_not_wait and collective.kind == "sharded"
    return enter_collective(state, call, collective, may_not_wait=may_not_wait)


def _container_call(state: InterpreterState, call: LibraryCall) -> Value:
    """Return the result of a container method and record the mutation."""
    if call.receiver_class == ATTRIBUTES:
        return update_attributes(state, call)
    values = call.arguments.all_values
    objects = tuple(obj for argument in values for obj in argument.objects)
    objects += tuple(mark for argument in values for mark in held_data(argument))
    changed = None
    if call.name == "update":
        changed = updated_dict(call.receiver, call.arguments, call.frame.own_control)
    if changed is not None:
        objects = (changed, *(obj for obj in objects if not isinstance(obj, DICTS)))
    grows = call.name not in ("update", "setdefault") or bool(call.frame.control)
    if call.receiver_node is not None:
        value = combine_values(*values) if values else UNIFORM
        inner = value.length if call.name == "append" else value.element_length
        # tests of a list usually ask for emptiness rather than content
        value = replace(
            value,
            content=without_kinds(value.content, {TaintKind.DATA}),
            element_length=without_kinds(inner, RANK_OR_SELECTED),
        )
        added = merge_length(values) if call.name in ("update", "extend") else ()
        if call.name in ("setdefault", "add"):
            added = key_taint(state, call.frame, call.first(), call.node)
        mutate(
            state,
            call.frame,
            call.receiver_node,
            value,
            grows=grows,
            added=persistent_taint(added),
            objects=objects,
        )
    key, named = call.first().const, dict_entries(call.receiver) or {}
    if call.name == "pop" and isinstance(key, str) and key in named:
        return named[key]
    return replace(call.receiver, known=False) if call.name in ("pop", "setdefault") else UNIFORM


def _varying_answer(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the result of a query whose answer differs between ranks."""
    receiver = call.receiver
    meshes = receiver.objects_of(DeviceMesh)
    answer = mesh_method(state, call, meshes[0]) if len(meshes) == 1 else None
    if answer is not None:
        return answer
    if call.name in varying_values.FILE_TESTS and not receiver.agreed:
        return Value(
            merge_taint(
                state.taint_source(call.frame, TaintKind.FILES, call.node), receiver.content
            )
        )
    if call.name in varying_values.DATA_TESTS:
        return finiteness_test(state, call, receiver)
    if (
        call.name in _VALUE_METHODS
        and not receiver.agreed
        and (BATCH in receiver.objects or _is_local_data(call))
    ):
        data = TaintKind.DATA if BATCH in receiver.objects else TaintKind.NAMED
        return Value(
            merge_taint(state.taint_source(call.frame, data, call.node), receiver.content),
            objects=model_outputs((receiver,)),
        )
    kind = varying_values.VARYING_NAMES.get(call.name)
    if kind is not None and not receiver.agreed:
        return Value(state.taint_source(call.frame, kind, call.node))
    return None


def _is_local_data(call: LibraryCall) -> bool:
    """Return True for rank-local batch data, judged by its name: ``(labels > 0).sum()``."""
    receiver = call.receiver
    if (
        receiver.known
        or receiver.content
        or not isinstance(call.receiver_node, (ast.Name, ast.Attribute))
    ):
        return False
    return bool(_LOCAL_DATA_NAME.search(last_name(call.receiver_node)))


def finiteness_test(state: InterpreterState, call: LibraryCall, value: Value) -> Value:
    """Return the result of a finiteness test, tainted unless the value is agreed or uniform."""
    if (
        value.agreed
        or (value.known and not value.content)
        or _tests_bound(call.node)
        or _tests_gradient_norm(call.node)
    ):
        return Value(content=value.content)
    return Value(
        merge_taint(state.taint_source(call.frame, TaintKind.DATA, call.node), value.content),
        objects=(MASK,),
    )


def _tests_bound(node: ast.AST) -> bool:
    """Return True for ``math.isfinite(config.threshold)``: the bound is set on all ranks."""
    tested = node.args[0] if isinstance(node, ast.Call) and node.args else None
    return isinstance(tested, (ast.Name, ast.Attribute)) and bool(
        _BOUND_NAME.search(ast.unparse(tested))
    )


def _tests_gradient_norm(node: ast.AST) -> bool:
    """Return True for ``isfinite(grad_norm)``: gradients, and so their norm, are averaged."""
    tested = (
        node.args[0]
        if isinstance(node, ast.Call) and node.args
        else getattr(getattr(node, "func", None), "value", None)
    )
    return isinstance(tested, (ast.Name, ast.Attribute)) and bool(
        _NORM_NAME.search(dotted_name(tested))
    )


def _unlisted_method(state: InterpreterState, call: LibraryCall) -> Value:
    receiver = call.receiver
    returns_self = call.name in library.SELF_RETURNING.get(call.receiver_class, ())
    if returns_self or (call.name in library.MODULE_METHODS and _is_module(receiver)):
        return receiver
    if _IN_PLACE.fullmatch(call.name) and call.arguments.all_values:
        return change_in_place(state, call)
    sized = tensor_methods.size_method(call)
    if sized is not None:
        return sized
    others = () if call.name in _DEVICE_METHODS else call.arguments.all_values
    value = keep_sums(call, combine_values(receiver, *others))
    if call.name in SELECTING:
        element_count = merge_taint(value.length, selection_taint(state, call, receiver))
        value = replace(value, length=element_count, element_length=element_count)
    if call.name in _REDUCING_METHODS and not call.arguments.all_values:
        value = replace(value, length=(), element_length=())  # a scalar
    if BATCH in receiver.objects and call.name not in _VALUE_METHODS:
        masks = (MASK,) if MASK in receiver.objects and call.name not in SELECTING else ()
        return replace(value, known=False, objects=(BATCH, *model_outputs((receiver,)), *masks))
    value = _as_text_of(call, value)
    wrappers = tuple(
        obj
        for obj in receiver.objects
        if isinstance(obj, LibraryInstance) and obj.name.startswith(("output:", "wrapped:"))
    )
    objects = wrappers if call.name in _DIFFERENTIABLE_METHODS else wrappers[:1] or value.objects
    return replace(
        value, known=receiver.agreed and value.known, agreed=receiver.agreed, objects=objects
    )


def _as_text_of(call: LibraryCall, value: Value) -> Value:
    """Return the result of a method of text or of a path, with what its receiver contains."""
    receiver = call.receiver
    if RANK_TEXT in receiver.objects:
        value = replace(value, objects=(RANK_TEXT, *stamps_of((receiver,))))
    elif not value.objects and call.name not in _NUMBER_METHODS:
        value = replace(value, objects=stamps_of((receiver, *call.arguments.all_values)))
    if call.name in _TEXT_METHODS:
        dropped_kinds = RANK_OR_SELECTED if call.name in _AFFIX_METHODS else _SELECTED_KINDS
        value = replace(value, content=without_kinds(value.content, dropped_kinds))
    return value


def _is_module(value: Value) -> bool:
    """Return True for a model or metric: moving it to a device returns it."""
    return bool(value.objects_of(Instance)) or any(
        name.startswith("wrapped:") or name == "torchmetrics.Metric"
        for name in library_class_names(value)
    )


# ---- models of methods; None if the method is of an unrelated class


def _step(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Model GradScaler's step, skipped on ranks that find Inf, and ReduceLROnPlateau's step.

    What an environment returns is of the rank's own episode.
    """
    named = call.receiver_node is not None and last_name(call.receiver_node)
    if named and not call.receiver_class and _ENVIRONMENT.search(named):
        return Value(state.taint_source(call.frame, TaintKind.DATA, call.node), known=False)
    if call.receiver_class == "plateau":
        metric = call.first("metrics")
        script = call.frame.scope.module if call.frame.function is None else None
        if script is not None and not _SEVERAL_RANKS.search(script.text):
            return UNIFORM
        if not metric.agreed and (
            metric.content or model_outputs((metric,)) or BATCH in metric.objects
        ):
            why = metric.content or state.taint_source(call.frame, TaintKind.DATA, call.node)
            call.frame.add_effect(Marker("state", call.location, state.unparse(call.node), why))
        return UNIFORM
    if call.receiver_class != "scaler" or not call.arguments.all_values:
        return None
    optimizer = call.arguments.all_values[0]
    fault = state.taint_source(
        call.frame, TaintKind.DATA, call.node, "GradScaler skips the step on ranks that find Inf"
    )
    with call.frame.collect_effects(fault) as inner:
        for obj in optimizer.objects:
            method = (
                state.symbols.find_method(obj.cls, "step") if isinstance(obj, Instance) else None
            )
            if method is not None:
                state.invoke(
                    call.frame, call.node, FunctionObject(method, None, optimizer), Arguments()
                )
    call.frame.effects.extend(inner)
    return UNIFORM


def _unscale(_: InterpreterState, call: LibraryCall) -> Value:
    if call.receiver_class == "scaler":
        call.frame.add_effect(Marker("unscale", call.location))
    return UNIFORM


def _backward(state: InterpreterState, call: LibraryCall) -> Value:
    if record_bare_backward(state, call, call.first()):
        return UNIFORM
    if model_outputs(call.arguments.all_values) or call.receiver_class in (
        "accelerate.Accelerator",
        "lightning.Fabric",
    ):
        call.frame.add_effect(Operation("backward", call.location, GroupScope.WORLD, "backward"))
    else:
        call.frame.add_effect(Marker("backward", call.location))
    return UNIFORM


def _scale(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the loss that a GradScaler scales."""
    return call.first("outputs") if model_outputs(call.arguments.all_values) else None


def _set_epoch(_: InterpreterState, call: LibraryCall) -> Value:
    call.frame.add_effect(Marker("set_epoch", call.location))
    return UNIFORM


def _format(_: InterpreterState, call: LibraryCall) -> Value:
    value = combine_values(call.receiver, *call.arguments.all_values)
    return as_text(value)


def _start(state: InterpreterState, call: LibraryCall) -> Value:
    for obj in call.receiver.objects:
        if isinstance(obj, Instance) and library_base(state.symbols, obj.cls) == "thread":
            method = state.symbols.find_method(obj.cls, "run")
            if method is not None:
                thread = Value(objects=(FunctionObject(method, None, call.receiver),))
                run_thread(state, call.frame, call.node, thread, Arguments())
    return UNIFORM


def _log(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Model Lightning's ``log``, which reduces over ranks with ``sync_dist``."""
    if not call.arguments.is_constant("sync_dist", answer=True) or call.arguments.is_constant(
        "rank_zero_only", answer=True
    ):
        return None
    call.frame.add_effect(Operation("log", call.location))
    return UNIFORM


def _apply(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Run the forward and backward of a custom ``autograd.Function``."""
    if call.receiver_class != "autograd":
        return None
    value, arguments = UNKNOWN, call.arguments
    for cls in (obj.cls for obj in call.receiver.objects_of(ClassObject)):
        names = state.symbols
        with_context = names.find_method(cls, "setup_context") is None
        forward, backward = names.find_method(cls, "forward"), names.find_method(cls, "backward")
        if forward is not None:
            bound = UNKNOWN if with_context else None
            value = state.invoke(
                call.frame, call.node, FunctionObject(forward, None, bound), arguments
            )
        if backward is not None:
            state.invoke(
                call.frame,
                call.node,
                FunctionObject(backward),
                positional_arguments(*[UNKNOWN] * len(backward.parameters)),
            )
    return value


def _map(_: InterpreterState, call: LibraryCall) -> None:
    record_work(call)


_METHOD_MODELS: dict[str, Callable[[InterpreterState, LibraryCall], Value | None]] = {
    "step": _step, "unscale_": _unscale, "backward": _backward, "scale": _scale, "log": _log,
    "unwrap_model": frameworks.unwrap_model, "on": frameworks.add_decorated_handler,
    "add_event_handler": frameworks.add_handler,
    "get": dict_methods.get,
    "items": dict_methods.items, "keys": dict_methods.keys, "values": dict_methods.values,
    "set_epoch": _set_epoch, "prepare": frameworks.prepare, "setup": frameworks.setup, "map": _map,
    "format": _format, "start": _start,
    "apply": _apply,
    "seed": random_numbers.seed_by_system,
    "manual_seed": random_numbers.set_seed, "shuffle": random_numbers.shuffle,
    "permutation": random_numbers.permutation, "bool": tensor_methods.as_mask,
    "done": tensor_methods.done, "is_completed": tensor_methods.done,
    "iterdir": own_files.read_path, "glob": own_files.read_path, "rglob": own_files.read_path,
    "read_text": own_files.read_path, "read_bytes": own_files.read_path,
    "train": train_model, "eval": evaluate_model,
    "set": alarms.set_event, "is_set": alarms.is_event_set, "sort": sort_in_place,
    "generate": tensor_methods.generate, "tolist": tensor_methods.tolist,
    "state_dict": tensor_methods.state_dict,
    "batch_decode": tensor_methods.batch_decode,
    "submit": alarms.submit_to_executor, "result": alarms.await_result,
}  # fmt: skip
