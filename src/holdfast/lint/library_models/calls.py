"""Calls into libraries: apply the tables of :mod:`holdfast.lint.library` to values."""

from __future__ import annotations

import ast
import re

from msgspec.structs import replace

from holdfast.lint import library, varying_values
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.abstract_domain.values import (
    UNIFORM,
    UNKNOWN,
    NumberTypes,
    TaintKind,
    Value,
    as_selection,
    merge_content,
    merge_length,
    merge_taint,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    LAUNCHER_RANK,
    PADDING,
    RANDOM_STATE,
    RANK_TEXT,
    SIZED_TENSOR,
    TRIMMED,
    FunctionObject,
    GroupNumber,
    LibraryInstance,
    guard_callables,
    is_callable,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall
from holdfast.lint.abstract_state.elements import PIECES, with_held_data
from holdfast.lint.abstract_state.process_stamps import (
    ProcessStamp,
    stamps_of,
    without_stamps,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.group_numbers import group_number
from holdfast.lint.divergence.operand_counts import parts_of_size
from holdfast.lint.divergence.random_states import READS_STATE, record_random_state
from holdfast.lint.divergence.single_process import as_uniform
from holdfast.lint.divergence.wrapped_models import created_optimizer
from holdfast.lint.framework_calls import METRICS
from holdfast.lint.library_models import own_files
from holdfast.lint.library_models.classes import make_instance
from holdfast.lint.library_models.functions import function_model
from holdfast.lint.library_models.meshes import new_mesh
from holdfast.lint.library_models.methods import call_collective, finiteness_test
from holdfast.lint.library_models.random_numbers import record_seed, with_random_taint
from holdfast.lint.library_models.selection import SELECTING, seed_taint, selection_taint
from holdfast.lint.library_models.side_effects import record_call
from holdfast.lint.sources.modules import LIBRARIES, is_class_name

#: Constructors of a tensor of given size.
_SIZED_CONSTRUCTORS = frozenset({
    "arange", "zeros", "ones", "empty", "full", "randn", "rand", "randint", "eye", "linspace",
    "randperm",
})  # fmt: skip
_JOINING_FUNCTIONS = frozenset({
    "stack", "cat", "concat", "concatenate", "hstack", "vstack", "array", "tensor", "as_tensor",
    "from_numpy",
})  # fmt: skip
#: Functions whose result has the type of the number.
_TYPED_BY_VALUE = frozenset({"torch.tensor", "torch.as_tensor"})
_SPLITTING_FUNCTIONS = frozenset(
    {"split", "chunk", "array_split", "tensor_split", "split_with_sizes"}
)
#: Arguments that do not affect the content of a tensor.
_PLACEMENT_ARGUMENTS = ("device", "pin_memory")
#: Libraries whose functions never return None on some ranks only.
_NUMERIC_LIBRARIES = ("torch.", "numpy.", "math.")
#: Libraries whose collectives are all in the tables.
_KNOWN_LIBRARIES = LIBRARIES | {"torch", "numpy", "math", "os", "time", "threading", "mpi4py"}
_SEEDED_CONSTRUCTORS = frozenset(
    {"default_rng", "Generator", "Random", "RandomState", "manual_seed"}
)
#: Generators that take their seed from the system if none is passed.
_SEEDED_BY_SYSTEM = frozenset(
    {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"}
)


#: Classes of transformers that are models, not tokenizers or configurations.
_LOADED_MODEL = re.compile(r"transformers\.(?:AutoModel|\w+For[A-Z])\w*\.from_pretrained$")
#: Arguments with which a model is quantised, and not partitioned while it is loaded.
_WHOLE_MODEL = frozenset({"quantization_config", "load_in_4bit", "load_in_8bit"})
#: Functions whose results are text, from the process's own clock or host.
_TEXTS = frozenset({"time.strftime", "time.ctime", "socket.gethostname", "platform.node"})
#: Functions whose result has the elements of their argument, in its order.
_CONVERSIONS = frozenset({"asarray", "array", "tensor", "as_tensor", "from_numpy", "LongTensor"})
#: Functions whose results are in the order of the file system.
_LISTINGS = frozenset({"os.listdir", "os.scandir", "glob.glob"})


def library_call(state: InterpreterState, call: LibraryCall) -> Value:
    """Return the result of a library function or class, by canonical name."""
    value = _call_by_table(state, call)
    if value is not None:
        return value
    known = function_model(call.name)
    if known is not None:
        return known(state, call)
    if call.name.startswith(METRICS):
        local_only = call.arguments.is_constant("sync_on_compute", answer=False)
        return Value(objects=() if local_only else (LibraryInstance("torchmetrics.Metric"),))
    if _is_partitioned(state, call):
        call.frame.add_effect(Operation("from_pretrained", call.location))
    created = _created_object(call)
    if created is not None:
        return Value(known=False, objects=(created,))
    guard = varying_values.GUARDS.get(call.name.rpartition(".")[2])
    # a decorator called as a function, such as ``rank_zero_only``
    if guard is not None and any(map(is_callable, call.first().objects)):
        return guard_callables(call.first(), state.taint_source(call.frame, guard, call.node))
    record_call(state, call)
    record_seed(state, call)
    record_random_state(state, call)
    value = own_files.with_own_rows(
        state, call, with_random_taint(state, call, _unlisted_call(state, call))
    )
    if call.name in _TYPED_BY_VALUE and call.arguments.get(1, "dtype") is None:
        value = replace(value, objects=(*call.first().objects_of(NumberTypes), *value.objects))
    return value


def _is_partitioned(state: InterpreterState, call: LibraryCall) -> bool:
    """Return True for a model that ZeRO-3 partitions over the ranks while it is loaded."""
    return (
        _LOADED_MODEL.match(call.name) is not None
        and call.arguments.starred is None
        and _WHOLE_MODEL.isdisjoint(call.arguments.named)
        and state.partitions_loaded_models
    )


def _created_object(call: LibraryCall) -> LibraryInstance | None:
    """Return an optimizer of all ranks, a model that is split, or a generator's state."""
    if call.name in READS_STATE:
        return RANDOM_STATE
    plan = call.arguments.named.get("tp_plan")
    if call.name.endswith(".from_pretrained") and plan is not None and plan.const is not None:
        return LibraryInstance("wrapped:tp")
    return created_optimizer(call)


def _call_by_table(state: InterpreterState, call: LibraryCall) -> Value | None:
    name = call.name
    collective = library.CALLS.get(name) or library.DERIVED_CALLS.get(name)
    if collective is not None and name in library.MESHES:
        # ``_init_backend=False``: a layout without groups
        if not call.arguments.is_constant("_init_backend", answer=False):
            call_collective(state, call, collective)
        return Value(objects=(new_mesh(state, call),))
    if collective is not None:
        return call_collective(state, call, collective)
    class_name = library.CLASSES.get(name) or library.DERIVED_CLASSES.get(name)
    if class_name is not None:
        return make_instance(state, call, class_name)
    if name in varying_values.FINITENESS_TESTS:
        return finiteness_test(
            state, call, call.arguments.all_values[0] if call.arguments.all_values else UNKNOWN
        )
    kind = varying_values.VARYING.get(name)
    if kind is not None:
        # with a group argument, ranks outside of it get -1
        numbered = kind in (TaintKind.RANK, TaintKind.LOCAL_RANK) and not call.arguments.all_values
        listed = name in _LISTINGS
        sources = state.taint_source(call.frame, kind, call.node)
        stamps = stamps_of((Value(sources),)) if name in _TEXTS else ()
        return Value(
            sources,
            length=own_files.own_length(state, call, call.first("path")) if listed else (),
            order=state.taint_source(call.frame, TaintKind.ORDER, call.node) if listed else (),
            objects=(LAUNCHER_RANK,) if numbered else stamps or _position(state, call),
        )
    return _call_by_name(state, call)


def _position(state: InterpreterState, call: LibraryCall) -> tuple[GroupNumber, ...]:
    """Return the position in a group that ``get_rank(group)`` and ``get_group_rank`` return."""
    if not call.name.endswith(("get_rank", "get_group_rank")):
        return ()
    number = group_number(state, call, "position")
    return () if number is None else (number,)


def _call_by_name(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the result of a function of an unread file of the program, by its name."""
    home, _, last = call.name.rpartition(".")
    if not home or home.partition(".")[0] in _KNOWN_LIBRARIES:
        return None
    if last == "synchronize" and home.endswith(("comm", "dist", "distributed")):
        last = "barrier"
    collective = library.NAMED_COLLECTIVES.get(last)
    if collective is not None:
        return call_collective(state, call, collective)
    if last == "get_dist_info":
        return Value(items=(_named_rank(state, call, TaintKind.RANK), UNIFORM))
    kind = varying_values.NAMED_RANKS.get(last)
    return None if kind is None else _named_rank(state, call, kind)


def _named_rank(state: InterpreterState, call: LibraryCall, kind: TaintKind) -> Value:
    sources = state.taint_source(call.frame, kind, call.node)
    return Value(tuple(replace(source, by_name=True) for source in sources))


def _unlisted_call(state: InterpreterState, call: LibraryCall) -> Value:
    """Return the result of a function in no table: by its name, else tainted like its arguments."""
    placements = [
        call.arguments.named[name] for name in _PLACEMENT_ARGUMENTS if name in call.arguments.named
    ]
    values = [
        with_held_data(value)
        for value in call.arguments.all_values
        if not any(value is placement for placement in placements)
    ]
    last = call.name.rpartition(".")[2]
    content = merge_content(values)
    length = merge_length(values)
    known = all(value.known for value in values)
    if last in _SIZED_CONSTRUCTORS and call.name.startswith(("torch.", "numpy.", "np.")):
        sizes = _size_arguments(last, call.arguments)
        pads = (PADDING,) if any(PADDING in size.objects for size in sizes) else ()
        length = merge_taint(*(size.content for size in sizes))
        parts = parts_of_size(sizes[0]) if sizes and last != "arange" else ()
        return Value(content, length, known=known, objects=(SIZED_TENSOR, *pads, *parts))
    if last in _JOINING_FUNCTIONS:
        pieces = call.arguments.positional or values  # ignore the device= of another tensor
        length = merge_length(pieces)
        inner = merge_taint(*(piece.element_length for piece in pieces))
        padding = _padding(pieces)
        return Value(
            content,
            () if PADDING in padding else merge_taint(length, inner),
            merge_taint(*(piece.order for piece in pieces)),
            known=known,
            objects=(*_batch_objects(pieces), *padding),
            agreed=any(value.agreed for value in values),
        )
    if last in _SPLITTING_FUNCTIONS:
        order = merge_taint(*(value.order for value in values))
        return Value(content, order=order, known=False, objects=(PIECES,))
    if last in _SEEDED_CONSTRUCTORS:
        if call.name in _SEEDED_BY_SYSTEM and not values:
            return Value(state.taint_source(call.frame, TaintKind.DATA, call.node))
        return Value(seed_taint(content))
    return _computed_value(state, call, values, last)


#: Names of unknown functions whose result all ranks share.
_COMBINES_RANKS = re.compile(r"gather|reduce|sync|broadcast|agree|all_|dist", re.IGNORECASE)


def _computed_value(
    state: InterpreterState, call: LibraryCall, values: list[Value], last: str
) -> Value:
    """Return a computed value, tainted like its inputs."""
    content, length = (merge_content(values), merge_length(values))
    if _COMBINES_RANKS.search(last) and not call.name.startswith(_NUMERIC_LIBRARIES):
        content = without_kinds(content, {TaintKind.DATA})
    if last in SELECTING or (last == "where" and len(values) == 1):
        # ``where`` returns a tuple
        count = merge_taint(length, selection_taint(state, call, *values))
        return Value(
            content,
            count,
            element_length=count if last in ("where", "nonzero") else (),
            known=False,
        )
    named: tuple[LibraryInstance | ProcessStamp, ...] = stamps_of(values)
    if any(RANK_TEXT in value.objects for value in values):
        named = (RANK_TEXT, *named)
    if not named and call.name.startswith(("torch.", "numpy.")) and not is_class_name(last):
        named = (*model_outputs(values), *_batch_objects(values))
    functions = tuple(
        obj for value in values for obj in value.objects if isinstance(obj, FunctionObject)
    )
    if functions:
        _run_spawned(state, call)
    # A size that all ranks agreed on, or a loss, which is a scalar.
    sized = (
        any(value.agreed for value in values[1:])
        or last.endswith("_loss")
        or last == "cross_entropy"
    )
    # class instances are not tainted by their arguments
    content = () if is_class_name(last) else as_selection(content)
    agreed = bool(values) and values[0].agreed
    absent = () if call.name.startswith(_NUMERIC_LIBRARIES) else content
    order = merge_taint(*(value.order for value in values)) if last in _CONVERSIONS else ()
    return Value(
        content,
        () if sized else length,
        order,
        absent=absent,
        known=False,
        objects=named,
        agreed=agreed,
    )


def _batch_objects(values: list[Value]) -> tuple[LibraryInstance, ...]:
    """Return BATCH if any of the values derives from a batch."""
    return (BATCH,) if any(BATCH in value.objects for value in values) else ()


def _padding(values: list[Value]) -> tuple[LibraryInstance, ...]:
    """Return TRIMMED or PADDING if one of the joined pieces pads the others to an agreed size."""
    pieces = [piece for value in values for piece in (value, *(value.items or ()))]
    return tuple(
        mark for mark in (TRIMMED, PADDING) if any(mark in piece.objects for piece in pieces)
    )


def _size_arguments(last: str, arguments: Arguments) -> list[Value]:
    if last == "full":
        return arguments.positional[:1]
    return arguments.positional[2:] if last == "randint" else arguments.positional


def _run_spawned(state: InterpreterState, call: LibraryCall) -> None:
    """Run a function passed to ``mp.spawn``: its first argument is the process's rank."""
    if not call.name.endswith(("multiprocessing.spawn", "mp.spawn")) or not isinstance(
        call.node, ast.Call
    ):
        return
    worker, extra = call.arguments.get(0, "fn"), call.arguments.get(1, "args")
    rank = Value(
        content=state.taint_source(call.frame, TaintKind.RANK, call.node, "the process index")
    )
    passed = (extra.items or ()) if extra is not None else ()
    # the one process that starts them computes these
    shared = [
        without_stamps(
            replace(
                as_uniform(value), objects=tuple(o for o in value.objects if o is not RANK_TEXT)
            )
        )
        for value in passed
    ]
    items = (rank, *shared)
    for obj in worker.objects if worker is not None else ():
        if isinstance(obj, FunctionObject):
            state.invoke(call.frame, call.node, obj, Arguments(list(items), [None] * len(items)))
