"""Classes of libraries: wrapped models, loaders, threads, and program classes derived from them."""

from __future__ import annotations

import ast
import re

from msgspec.structs import replace

from holdfast.lint import library
from holdfast.lint.abstract_domain.effects import GroupScope, Operation
from holdfast.lint.abstract_domain.values import (
    RANK_KINDS,
    UNKNOWN,
    Taint,
    Value,
    merge_content,
    merge_taint,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    CONFIGURED_MODEL,
    FunctionObject,
    GuardedCallable,
    Instance,
    LibraryInstance,
    dict_entries,
    library_class_names,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.function_summaries import SHARDED
from holdfast.lint.abstract_state.heap import forget_changes
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.bare_models import record_wrapped
from holdfast.lint.divergence.collectives import group_scope
from holdfast.lint.divergence.orders import record_second_share, record_unordered_data
from holdfast.lint.divergence.wrapped_models import (
    OPTIMIZER,
    record_sharded_after,
    record_unsynchronized_weights,
)
from holdfast.lint.framework_calls import METRICS
from holdfast.lint.sources.modules import Class, SymbolTable

#: The sampler of a loader without one: each rank gets all of the data.
UNSHARDED = LibraryInstance("unsharded")
#: The sampler of a loader whose data or sampler were already sharded by rank.
SHARDED_BY_RANK = LibraryInstance("sampler:own")
#: Constructs that give a model buffers.
_BUFFER_MODULES = re.compile(r"\b(?:Sync)?BatchNorm(?:[123]d)?\b|\bregister_buffer\(")
#: Words in a dataset that may be rank-specific.
_SHARDING_WORDS = re.compile(
    r"rank|world|shard|node|iterable|stream|split_|process|rand|worker|generat", re.IGNORECASE
)


def library_base(names: SymbolTable, cls: Class) -> str:
    """Return the library class that a program class derives from, as named in the tables."""
    for base in names.bases(cls):
        if isinstance(base, str):
            class_name = library.CLASSES.get(base) or library.DERIVED_CLASSES.get(base)
            if class_name is not None:
                return class_name
            if base.startswith(METRICS):
                return "torchmetrics.Metric"
    return ""


def make_instance(state: InterpreterState, call: LibraryCall, class_name: str) -> Value:
    """Return an instance of a library class, as named in the tables."""
    if class_name.startswith("wrapped:"):
        model = call.arguments.get(0, "module")
        record_wrapped(state, call)
        if class_name == "wrapped:ddp":
            _verify_parameters(call)
        if class_name == "wrapped:fsdp":
            record_sharded_after(state, call)
            record_unsynchronized_weights(state, call)
        return Value(
            objects=(LibraryInstance(class_name, unwrapped(model) if model is not None else None),),
            known=False,
        )
    if class_name == "sampler":
        record_unordered_data(state, call)
        record_second_share(state, call)
        ordered = call.arguments.is_constant("shuffle", answer=False)
        rank = call.arguments.get(2, "rank")
        # a group's ranks share the same data
        of_group = UNKNOWN if rank is not None and not rank.content else None
        return Value(
            objects=(LibraryInstance("sampler:ordered" if ordered else "sampler", of_group),),
            known=False,
        )
    if class_name == "loader":
        return _make_loader(state, call)
    if class_name == "thread":
        # of a Timer
        target = call.arguments.get(1, "target") or call.arguments.named.get("function")
        if target is not None:
            run_thread(state, call.frame, call.node, target, _thread_arguments(call.arguments))
    return Value(objects=(LibraryInstance(class_name),), known=False)


def _verify_parameters(call: LibraryCall) -> None:
    """Record that DDP compares and broadcasts the parameters when it wraps a model.

    Source: torch.nn.parallel.DistributedDataParallel.__init__ (2.13.0).
    """
    group = group_scope(call.arguments.named.get("process_group"))
    call.frame.add_effect(Operation("DistributedDataParallel", call.location, group))


def _make_loader(state: InterpreterState, call: LibraryCall) -> Value:
    arguments = call.arguments
    sampler = arguments.get(3, "sampler") or arguments.named.get("batch_sampler")
    data = arguments.get(0, "dataset")
    even = any(name.startswith("sampler") for name in library_class_names(sampler))
    size = arguments.get(1, "batch_size")
    length: Taint = (
        ()
        if even or data is None
        else merge_taint(data.length, sampler.length if sampler is not None else ())
    )
    length = merge_taint(length, size.content if size is not None else ())
    if sampler is None and data is not None and _is_unsharded(state, call, data):
        sampler = Value(objects=(UNSHARDED,))
    parts = [
        source
        for argument in (data, sampler)
        if argument is not None
        for source in (*argument.content, *argument.length)
    ]
    if not even and any(part.kind in RANK_KINDS for part in parts):
        sampler = Value(objects=(SHARDED_BY_RANK,))
    return Value(length=length, known=even, objects=(LibraryInstance("loader", sampler),))


def _is_unsharded(state: InterpreterState, call: LibraryCall, data: Value) -> bool:
    """Return True if each rank gets all data: nothing in its text or class suggests sharding."""
    node = call.arguments.node(0, "dataset")
    if (
        call.arguments.starred is not None
        or "generator" in call.arguments.named
        or node is None
        or data.content
        or data.length
        or data.objects_of(LibraryInstance)
    ):
        return False
    texts = [state.unparse(node)]
    for cls in (obj.cls for obj in data.objects_of(Instance)):
        texts += cls.module.lines[cls.node.lineno - 1 : cls.node.end_lineno]
        texts += [base for base in state.symbols.bases(cls) if isinstance(base, str)]
    return not any(_SHARDING_WORDS.search(text) for text in texts)


def _thread_arguments(arguments: Arguments) -> Arguments:
    """Return the arguments that a thread passes to its function."""
    args, named = arguments.named.get("args"), arguments.named.get("kwargs")
    items = list(args.items or ()) if args is not None else []
    rest = UNKNOWN if args is not None and args.items is None else None
    known = dict_entries(named) if named is not None else {}
    return Arguments(
        items, [None] * len(items), known or {}, starred=rest if known is not None else UNKNOWN
    )


def run_thread(
    state: InterpreterState, frame: Frame, node: ast.expr, target: Value, arguments: Arguments
) -> None:
    """Run a thread's function: its effects are concurrent, not in the order of this function."""
    objects = tuple(target.objects_of((FunctionObject, GuardedCallable)))
    if not objects:
        return
    before = frame.facts
    with frame.collect_effects() as inner:
        state.call(frame, node, replace(target, objects=objects), arguments)
    forget_changes(frame.scope.names, before)
    if inner:
        state.summaries.current.threads.append((frame.location(node), tuple(inner)))


def call_instance(call: LibraryCall) -> Value | None:
    """Return the result of calling a library instance: a wrapped model, a metric."""
    if call.receiver_class.startswith("wrapped:") or call.receiver_class == "deepspeed.Engine":
        wrapper = call.receiver_class.partition(":")[2] or "zero"
        configured = call.receiver_class == CONFIGURED_MODEL.name
        weak = configured or (wrapper == "ddp" and not _broadcasts_buffers(call))
        kind = "sharded" if configured else "forward"
        call.frame.add_effect(
            Operation("forward", call.location, GroupScope.WORLD, kind, may_not_wait=weak)
        )
        values = call.arguments.all_values
        output = LibraryInstance(f"output:{wrapper}")
        local = (BATCH,) if any(BATCH in value.objects for value in values) else ()
        return Value(merge_content(values), known=False, objects=(output, *local))
    is_known = call.receiver_class in ("torchmetrics.Metric", "module")
    return Value(known=False) if is_known else None


def _broadcasts_buffers(call: LibraryCall) -> bool:
    """Return True if DDP's forward broadcasts the model's buffers, as it does in evaluation too.

    The text of the model's module is searched for buffers. Source:
    torch.nn.parallel.DistributedDataParallel._pre_forward (2.13.0).
    """
    wrapped = [
        candidate.wrapped
        for candidate in call.receiver.objects
        if isinstance(candidate, LibraryInstance) and candidate.wrapped is not None
    ]
    files = {
        obj.cls.module for value in wrapped for obj in value.objects if isinstance(obj, Instance)
    }
    texts = [module.text for module in (*files, call.frame.scope.module)]
    return any(map(_BUFFER_MODULES.search, texts[:-1])) and not any(
        "broadcast_buffers=False" in text for text in texts
    )


def prepare_results(state: InterpreterState, arguments: Arguments) -> Value:
    """Return models, optimizers and loaders as Accelerate and Fabric wrap them."""
    wrapper = CONFIGURED_MODEL.name if state.shards_models else "wrapped:ddp"
    items = []
    for value in arguments.positional:
        if "loader" in library_class_names(value):
            even = LibraryInstance("loader", Value(objects=(LibraryInstance("sampler:ordered"),)))
            # all ranks get the same number of batches
            items.append(replace(value, length=(), objects=(even,)))
        elif {"scaler", OPTIMIZER} & set(library_class_names(value)):
            items.append(value)
        else:
            items.append(Value(objects=(LibraryInstance(wrapper, unwrapped(value)),), known=False))
    return items[0] if len(items) == 1 else Value(items=tuple(items), known=False)


def deepspeed_engine(arguments: Arguments) -> Value:
    """Return the result of ``deepspeed.initialize``: the engine and three other objects."""
    engine = Value(
        objects=(LibraryInstance("deepspeed.Engine", arguments.get(1, "model")),), known=False
    )
    return Value(items=(engine, UNKNOWN, UNKNOWN, UNKNOWN), known=False)


def synchronize_norms(state: InterpreterState, call: LibraryCall) -> Value:
    """Return a model whose BatchNorm layers compute the statistics of all ranks.

    Source: torch.nn.SyncBatchNorm.forward (2.13.0): it synchronizes in training mode only.
    """
    value = call.first("module")
    for candidate in value.objects_of(Instance):
        if candidate.cls not in state.synchronized:
            state.synchronized.add(candidate.cls)
            state.summaries.record_write(candidate.cls, SHARDED)
    return value


def fully_shard(state: InterpreterState, call: LibraryCall) -> Value:
    """Shard a model in place, as FSDP2 does: every reference to it is sharded."""
    record_sharded_after(state, call, in_place=True)
    value = call.first("module")
    objects = tuple(value.objects_of(Instance))
    for candidate in objects:
        if candidate.cls not in state.sharded:
            state.sharded.add(candidate.cls)
            state.summaries.record_write(candidate.cls, SHARDED)
    wrapped = Value(
        objects=(*objects, LibraryInstance("wrapped:fsdp", unwrapped(value))), known=False
    )
    if objects:
        return wrapped
    for cls, name in value.stored_in:
        state.write_attribute(
            Instance(cls), name, Value(objects=(LibraryInstance("wrapped:fsdp"),), known=False)
        )
    argument = call.arguments.node(0, "module")
    if isinstance(argument, ast.Name) and argument.id in call.frame.scope.names:
        call.frame.scope.names[argument.id] = wrapped
    return wrapped


def unwrapped(value: Value) -> Value:
    """Return what a wrapper wraps."""
    objects = tuple(
        obj
        for obj in value.objects
        if not (isinstance(obj, LibraryInstance) and obj.name.startswith("wrapped:"))
    )
    return replace(value, objects=objects, stored_in=(), items=None)
