"""Models of builtin and library functions: their result for given arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.lint import library
from holdfast.lint.abstract_domain.effects import GroupScope
from holdfast.lint.abstract_domain.values import (
    CLAMPED,
    MAX_OBJECTS,
    NO_CONSTANT,
    NONE_OBJECT,
    RANK_KINDS,
    ROUNDED_UP,
    UNIFORM,
    UNKNOWN,
    UNKNOWN_OBJECT,
    DictEntries,
    TaintKind,
    Value,
    as_selection,
    combine_values,
    constant_value,
    dict_of,
    join_values,
    merge_content,
    merge_taint,
    taint_kinds,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    ALL_RANKS,
    BATCH,
    BOUNDED,
    CONTAINED,
    COUNT,
    LAUNCHER_RANK,
    LOCAL_SIZE,
    PADDING,
    PROGRESS_BAR,
    RANK_SHARE,
    RANK_TEXT,
    WHOLE_SIZE,
    WORLD_SIZE,
    ClassObject,
    GuardedCallable,
    Instance,
    LibraryInstance,
    LibraryMethod,
    LibraryName,
    ModuleObject,
    TupleElements,
    dict_entries,
    is_callable,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.elements import (
    element_of,
    is_whole_data_set,
    with_held_data,
)
from holdfast.lint.abstract_state.process_stamps import (
    ProcessStamp,
    stamps_of,
)
from holdfast.lint.abstract_state.shares import divides, is_equal_share
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.collectives import group_scope
from holdfast.lint.divergence.group_numbers import group_number, single_number
from holdfast.lint.divergence.orders import record_unordered_share
from holdfast.lint.library_models import frameworks, own_files
from holdfast.lint.library_models.classes import (
    deepspeed_engine,
    fully_shard,
    synchronize_norms,
)
from holdfast.lint.library_models.records import (
    changed_copy,
    named_tuple,
    namespace,
    same_object,
    set_attribute,
)
from holdfast.lint.library_models.side_effects import record_variable
from holdfast.lint.sources.modules import Class, last_name

#: Objects preserved by conversions between number types.
_NUMBER_OBJECTS = ((LAUNCHER_RANK,), (COUNT,), (PADDING,), (LOCAL_SIZE,))
FunctionModel = Callable[[InterpreterState, LibraryCall], Value]


def _len(_: InterpreterState, call: LibraryCall) -> Value:
    value = call.first()
    if value.items is not None:
        return constant_value(len(value.items))
    if is_whole_data_set(value):
        return Value(content=value.length, known=value.known, objects=(WHOLE_SIZE,))
    return Value(
        content=value.length, known=value.known, objects=(COUNT,) if BATCH in value.objects else ()
    )


def _range(state: InterpreterState, call: LibraryCall) -> Value:
    values = call.arguments.positional
    content, known = (merge_content(values), all(value.known for value in values))
    all_ranks = len(values) == 1 and WORLD_SIZE in values[0].objects
    size = single_number(values[-1], "size") if len(values) in (1, 2) else None
    positions = (replace(size, kind="positions"),) if size is not None else ()
    # from a rank's first to its last index: equally many for each
    varying_bounds = is_equal_share(state, call.arguments.nodes, values)
    if any(PADDING in value.objects for value in values):
        call.frame.pads_rounds = True
        return Value(known=False)
    return Value(
        content,
        () if varying_bounds else content,
        known=known and not varying_bounds,
        objects=(ALL_RANKS,) if all_ranks else positions,
    )


def _slice(_: InterpreterState, call: LibraryCall) -> Value:
    value = combine_values(*call.arguments.positional)
    return replace(value, content=as_selection(value.content))


def _next(_: InterpreterState, call: LibraryCall) -> Value:
    over, default = call.first(), call.arguments.get(1, "default")
    value = element_of(over)
    if default is None:
        return value
    return replace(join_values((value, default)), absent=merge_taint(value.absent, over.length))


def _filter(state: InterpreterState, call: LibraryCall) -> Value:
    """Return the elements that pass a test: how many depends on their content."""
    over = call.arguments.get(1, "iterable")
    if over is None:
        return UNKNOWN
    one = element_of(over)
    tested = (
        state.taint_source(call.frame, TaintKind.DATA, call.node) if BATCH in one.objects else ()
    )
    return replace(
        over,
        length=merge_taint(over.length, one.content, tested),
        items=None,
        const=NO_CONSTANT,
        known=False,
    )


def _sorted(_: InterpreterState, call: LibraryCall) -> Value:
    over = call.first()
    if dict_entries(over) is not None and "key" not in call.arguments.named:
        return Value(length=over.length)  # a dict's keys do not differ as its values do
    return replace(over, order=(), const=NO_CONSTANT)


def _set(state: InterpreterState, call: LibraryCall) -> Value:
    value = call.first(otherwise=UNIFORM)
    numbers = value.items is not None and all(
        isinstance(item.const, (int, float)) for item in value.items
    )
    order = (
        ()
        if numbers or not call.arguments.positional
        else state.taint_source(call.frame, TaintKind.ORDER, call.node)
    )
    batch_taint = (
        state.taint_source(call.frame, TaintKind.DATA, call.node) if BATCH in value.objects else ()
    )
    return replace(
        value,
        items=None,
        order=order,
        const=NO_CONSTANT,
        length=merge_taint(value.length, value.content, batch_taint),
    )


def _first_argument(_: InterpreterState, call: LibraryCall) -> Value:
    return call.first(otherwise=Value(items=()))


def _same_model(_: InterpreterState, call: LibraryCall) -> Value:
    """Return the model that a function compiles or converts, wrapped as before."""
    return call.arguments.get(0, "module") or call.first("model")


def _scalar(state: InterpreterState, call: LibraryCall) -> Value:
    values = [with_held_data(value) for value in call.arguments.all_values]
    content = merge_content(values)
    if call.name == "sum":
        content = merge_taint(content, *(value.length for value in values))
    if (
        call.name in ("int", "float", "bool")
        and values
        and BATCH in values[0].objects
        and not values[0].agreed
    ):
        content = merge_taint(content, state.taint_source(call.frame, TaintKind.DATA, call.node))
    # a number in a file name does not depend on whether the file exists
    if call.name in ("int", "float"):
        content = without_kinds(content, {TaintKind.FILES})
    varying = [bool(value.content) for value in values]
    clamped = call.name in ("min", "max") and any(varying) and not all(varying)
    if call.name == "str":  # the handler already taints the exception
        content = without_kinds(content, {TaintKind.FAULT})
    return Value(
        content=content,
        known=all(value.known for value in values),
        agreed=any(value.agreed for value in values),
        ragged=CLAMPED if clamped else max([value.ragged for value in values], default=0),
        objects=values[0].objects
        if len(values) == 1 and values[0].objects in _NUMBER_OBJECTS
        else model_outputs(values) or (stamps_of(values) if call.name == "str" else ()),
    )


def _dict(_: InterpreterState, call: LibraryCall) -> Value:
    if call.arguments.positional or call.arguments.starred is not None:
        return join_values(call.arguments.all_values)
    named = call.arguments.named
    value = join_values(named.values()) if named else UNIFORM
    others = (obj for obj in value.objects if not isinstance(obj, DictEntries))
    return replace(value, objects=(dict_of(dict(named)), *others), items=None, const=NO_CONSTANT)


def _enumerate(_: InterpreterState, call: LibraryCall) -> Value:
    value = call.first()
    stored_in = element_of(value).stored_in
    return Value(
        value.content,
        value.length,
        value.order,
        known=value.known,
        objects=value.objects,
        stored_in=stored_in,
    )


def _zip(_: InterpreterState, call: LibraryCall) -> Value:
    objects = tuple(
        obj
        for value in call.arguments.all_values
        for obj in value.objects
        if not isinstance(obj, TupleElements)
    )
    rows = (
        (TupleElements(tuple(map(element_of, call.arguments.positional))),)
        if call.arguments.starred is None
        else ()
    )
    value = replace(
        combine_values(*call.arguments.all_values), objects=(*rows, *objects)[:MAX_OBJECTS]
    )
    return _with_equal_count(value) if _bounded(call) else value


def _bounded(call: LibraryCall) -> bool:
    """Return True for ``zip(range(steps), loader)``: the iteration count is uniform."""
    pairs = zip(call.arguments.nodes, call.arguments.positional, strict=False)
    return any(
        isinstance(node, ast.Call) and last_name(node.func) == "range" and not value.length
        for node, value in pairs
    )


def _islice(state: InterpreterState, call: LibraryCall) -> Value:
    over, bounds = call.first(), call.arguments.positional[1:]
    varying = merge_content(bounds)
    record_unordered_share(state, call.frame, call.node, over, varying)
    if bounds and (not varying or is_equal_share(state, call.arguments.nodes[1:], bounds)):
        return _with_equal_count(over)
    return replace(over, length=merge_taint(over.length, varying))


def _with_equal_count(over: Value) -> Value:
    """Return what is iterated equally often on all ranks, whatever ``__iter__`` yields."""
    return replace(over, length=(), objects=(BOUNDED, *over.objects)[:MAX_OBJECTS])


def _ceil(_: InterpreterState, call: LibraryCall) -> Value:
    """Model ``math.ceil``: a share of ``ceil(size / world_size)`` rounds up."""
    value = combine_values(*call.arguments.positional)
    node = call.arguments.node(0, "x")
    return replace(value, ragged=ROUNDED_UP) if node is not None and divides(node) else value


def _divmod(_: InterpreterState, call: LibraryCall) -> Value:
    value = combine_values(*call.arguments.positional)
    return Value(items=(value, value))


def _tqdm(_: InterpreterState, call: LibraryCall) -> Value:
    value = call.first("iterable", otherwise=UNIFORM)
    disabled = call.arguments.named.get("disable")
    if disabled is None or not disabled.content:
        return value
    bar = LibraryInstance(PROGRESS_BAR, Value(disabled.content))  # counts only where it is shown
    return replace(value, objects=(*value.objects, bar))


def _isinstance(state: InterpreterState, call: LibraryCall) -> Value:
    if len(call.arguments.positional) < 2:
        return UNKNOWN
    value, classes = call.arguments.positional[:2]
    tested = [obj.cls for obj in classes.objects_of(ClassObject)]
    objects = [obj.cls for obj in value.objects_of(Instance)]
    if _is_wrapped(value, classes):
        return constant_value(True)  # noqa: FBT003 - the constant itself
    if tested and objects and len(objects) == len(value.objects):
        answers = {
            any(cls is candidate or candidate in state.symbols.bases(cls) for candidate in tested)
            for cls in objects
        }
        if len(answers) == 1:
            return constant_value(answers.pop())
    return Value(content=value.absent, known=False)  # the type differs only if one is None


def _is_wrapped(value: Value, classes: Value) -> bool:
    """Return True for a wrapped model, tested for the class of its wrapper."""
    wrappers = {library.CLASSES.get(name.name, "") for name in classes.objects_of(LibraryName)}
    held = [obj for obj in value.objects if obj is not UNKNOWN_OBJECT]
    return bool(held) and all(
        isinstance(obj, LibraryInstance)
        and obj.name.startswith("wrapped:")
        and obj.name in wrappers
        for obj in held
    )


def _super(state: InterpreterState, call: LibraryCall) -> Value:
    owner = call.frame.function.owner if call.frame.function is not None else None
    if owner is None:
        return UNKNOWN
    base = next(
        (parent for parent in state.symbols.bases(owner) if isinstance(parent, Class)), None
    )
    return Value(objects=(Instance(base),) if base is not None else (), known=False)


def _partial(_: InterpreterState, call: LibraryCall) -> Value:
    """Return a callable with positional and keyword arguments bound."""
    positional, named = tuple(call.arguments.positional[1:]), tuple(call.arguments.named.items())
    objects = call.first("func").objects
    return Value(
        objects=tuple(
            GuardedCallable(obj, positional, named) for obj in objects if is_callable(obj)
        ),
        known=False,
    )


def _getattr(state: InterpreterState, call: LibraryCall) -> Value:
    """Return an attribute by a known name: a method of an instance, or the default."""
    base = call.first()
    name = call.arguments.get(1, "name")
    default = call.arguments.get(2, "default")
    if name is None or not isinstance(name.const, str) or not name.const.isidentifier():
        return UNKNOWN if name is None else combine_values(*call.arguments.all_values)
    objects = [
        obj
        for obj in base.objects
        if isinstance(obj, (Instance, ModuleObject, ClassObject, LibraryInstance, GuardedCallable))
    ]
    if not objects:
        return combine_values(*call.arguments.all_values)
    value = state.evaluate_attribute(call.frame, base, name.const, call.node)
    # no such attribute
    if any(isinstance(obj, LibraryMethod) and obj.owner is None for obj in value.objects):
        return default if default is not None else UNKNOWN
    return value


def _unknown(_: InterpreterState, __: LibraryCall) -> Value:
    return UNKNOWN


def _getenv(state: InterpreterState, call: LibraryCall) -> Value:
    name = call.first("key").const
    value = (
        state.environment_variable(call.frame, name, call.node)
        if isinstance(name, str)
        else UNKNOWN
    )
    otherwise = call.arguments.get(1, "default")
    if otherwise is not None or not value.content:
        return value
    return replace(value, objects=(LAUNCHER_RANK, NONE_OBJECT))


def _get(state: InterpreterState, call: LibraryCall) -> Value:
    return _getenv(state, call) if call.name.startswith("os.environ") else UNKNOWN


def _setdefault(_: InterpreterState, call: LibraryCall) -> Value:
    if call.name.startswith("os.environ"):
        record_variable(call)
    return UNKNOWN


def _world_size(state: InterpreterState, call: LibraryCall) -> Value:
    number = group_number(state, call, "size")
    if number is not None:
        return Value(objects=(number,))
    group = call.arguments.get(0, "group")
    of_all = group is None or group.const is None or group_scope(group) is GroupScope.WORLD
    return Value(objects=(WORLD_SIZE,)) if of_all else UNIFORM


def _uniform(_: InterpreterState, __: LibraryCall) -> Value:
    return UNIFORM


def _split_by_node(_: InterpreterState, call: LibraryCall) -> Value:
    """Model ``split_dataset_by_node``: a share of the data, if the rank is passed."""
    value, rank = call.first("dataset"), call.arguments.get(1, "rank")
    own = rank is not None and bool(taint_kinds(rank.content) & RANK_KINDS)
    return replace(value, known=False, objects=(RANK_SHARE,) if own else value.objects)


def _new_path(state: InterpreterState, call: LibraryCall) -> Value:
    sources = state.taint_source(call.frame, TaintKind.HOST, call.node)
    return Value(objects=(RANK_TEXT, *map(ProcessStamp, sources)))


def _initialize(_: InterpreterState, call: LibraryCall) -> Value:
    return deepspeed_engine(call.arguments) if call.name.startswith("deepspeed") else UNKNOWN


def _defaultdict(_: InterpreterState, call: LibraryCall) -> Value:
    """Return a container of what the factory creates."""
    factory = call.arguments.get(0, "default_factory")
    instances = (
        tuple(Instance(obj.cls) for obj in factory.objects if isinstance(obj, ClassObject))
        if factory is not None
        else ()
    )
    return Value(objects=(CONTAINED, *instances) if instances else (DictEntries({}),))


_BUILTINS: dict[str, FunctionModel] = {
    "wandb.init": frameworks.create_run,
    "len": _len, "range": _range, "sorted": _sorted, "set": _set, "frozenset": _set,
    "list": _first_argument, "tuple": _first_argument, "reversed": _first_argument,
    "iter": _first_argument, "next": _next, "int": _scalar, "float": _scalar, "bool": _scalar,
    "str": _scalar, "min": _scalar, "max": _scalar, "sum": _scalar, "any": _scalar, "all": _scalar,
    "abs": _scalar, "dict": _dict, "filter": _filter, "enumerate": _enumerate, "zip": _zip,
    "isinstance": _isinstance,
    "slice": _slice, "super": _super, "open": own_files.open_file, "getattr": _getattr,
    "divmod": _divmod,
    "math.ceil": _ceil, "numpy.ceil": _ceil, "setattr": set_attribute, "copy.copy": same_object,
    "tempfile.TemporaryDirectory": _new_path, "tempfile.mkdtemp": _new_path,
    "tempfile.NamedTemporaryFile": _new_path,
    "torch.compile": _same_model, "torch.jit.script": _same_model,
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": synchronize_norms,
    "copy.deepcopy": same_object, "dataclasses.replace": changed_copy,
}  # fmt: skip
#: By last name, as several libraries export them.
_EXPORTED_NAMES: dict[str, FunctionModel] = {
    "get_world_size": _world_size, "is_initialized": _uniform, "is_available": _uniform,
    "initialize": _initialize, "fully_shard": fully_shard, "getenv": _getenv, "partial": _partial,
    "defaultdict": _defaultdict, "ModuleList": _first_argument, "ModuleDict": _first_argument,
    "split_dataset_by_node": _split_by_node,
    "get": _get, "setdefault": _setdefault, "tqdm": _tqdm, "islice": _islice,
    "namedtuple": named_tuple, "SimpleNamespace": namespace, "Namespace": namespace,
    "create_supervised_trainer": frameworks.supervised_engine,
    "create_supervised_evaluator": frameworks.supervised_engine,
    "#handler": frameworks.run_handler,
    "EasyDict": namespace, "AttrDict": namespace, "Munch": namespace,
}  # fmt: skip


def function_model(name: str) -> FunctionModel | None:
    """Return the model of a function, by its canonical name."""
    return _EXPORTED_NAMES.get(name.rpartition(".")[2]) or _BUILTINS.get(name)
