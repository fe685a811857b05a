"""Functions of Python and of libraries that the interpreter knows by heart: what they give for what they are given."""

from __future__ import annotations

import ast
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.facts.code.arguments import LibraryCall
from holdfast.facts.code.collectives import ALL_RANKS, WORLD_SIZE
from holdfast.facts.code.library.classes import deepspeed_engine, fully_shard
from holdfast.facts.code.modules import Class, last_name
from holdfast.facts.code.noted import note_file, note_variable
from holdfast.facts.code.state import State
from holdfast.facts.code.things import (
    BATCH,
    COUNT,
    LAUNCHED,
    LISTED,
    PADDING,
    Applied,
    Made,
    Mod,
    Obj,
    Partial,
    Rows,
    Type,
    is_callable,
    outputs,
)
from holdfast.facts.code.values import (
    MISSING,
    MOST_THINGS,
    NONE,
    SAME,
    UNKNOWN,
    Given,
    Kind,
    Value,
    constant,
    derived,
    join,
    merged,
    picked,
)

#: What a number stays that is made of another kind of number.
_KEPT = ((LAUNCHED,), (COUNT,), (PADDING,))
Known = Callable[[State, LibraryCall], Value]


def _len(_: State, call: LibraryCall) -> Value:
    value = call.first()
    if value.items is not None:
        return constant(len(value.items))
    return Value(content=value.length, known=value.known, things=(COUNT,) if BATCH in value.things else ())


def _range(_: State, call: LibraryCall) -> Value:
    values = call.given.positional
    content, known = merged(*(each.content for each in values)), all(each.known for each in values)
    whole = len(values) == 1 and WORLD_SIZE in values[0].things
    both = len(values) == 2 and all(
        each.content for each in values
    )  # from a rank's first to its last: as many for each
    if any(PADDING in each.things for each in values):
        call.frame.padded = True
        return Value(known=False)
    return Value(content, () if both else content, known=known and not both, things=(ALL_RANKS,) if whole else ())


def _slice(_: State, call: LibraryCall) -> Value:
    value = derived(*call.given.positional)
    return replace(value, content=picked(value.content))


def _next(state: State, call: LibraryCall) -> Value:
    over, default = call.first(), call.given.get(1, "default")
    value = state.element(over)
    if default is None:
        return value
    return replace(join((value, default)), absent=merged(value.absent, over.length))


def _sorted(_: State, call: LibraryCall) -> Value:
    return replace(call.first(), order=(), const=MISSING)


def _set(state: State, call: LibraryCall) -> Value:
    value = call.first(otherwise=SAME)
    numbers = value.items is not None and all(isinstance(each.const, (int, float)) for each in value.items)
    order = () if numbers or not call.given.positional else state.source(call.frame, Kind.ORDER, call.node)
    own = state.source(call.frame, Kind.DATA, call.node) if BATCH in value.things else ()
    return replace(value, items=None, order=order, const=MISSING, length=merged(value.length, value.content, own))


def _same(_: State, call: LibraryCall) -> Value:
    return call.first(otherwise=Value(items=()))


def _scalar(state: State, call: LibraryCall) -> Value:
    values = call.given.all
    content = merged(*(each.content for each in values))
    if call.name == "sum":
        content = merged(content, *(each.length for each in values))
    if call.name in ("int", "float", "bool") and values and BATCH in values[0].things and not values[0].agreed:
        content = merged(content, state.source(call.frame, Kind.DATA, call.node))
    if call.name in ("int", "float"):  # a number in a file's name: of files it is asked whether they are there
        content = tuple(each for each in content if each.kind is not Kind.FILES)
    if call.name == "str":  # an exception's text: that there is one is told by the handler
        content = tuple(each for each in content if each.kind is not Kind.FAULT)
    return Value(
        content=content,
        known=all(each.known for each in values),
        agreed=any(each.agreed for each in values),
        things=values[0].things if len(values) == 1 and values[0].things in _KEPT else outputs(values),
    )


def _dict(_: State, call: LibraryCall) -> Value:
    if call.given.positional or call.given.rest is not None:
        return join(call.given.all)
    named = call.given.named
    value = join(named.values()) if named else SAME
    others = (each for each in value.things if not isinstance(each, Given))
    return replace(value, things=(Given(dict(named)), *others), items=None, const=MISSING)


def _enumerate(state: State, call: LibraryCall) -> Value:
    value = call.first()
    homes = state.element(value).homes
    return Value(value.content, value.length, value.order, known=value.known, things=value.things, homes=homes)


def _zip(state: State, call: LibraryCall) -> Value:
    things = tuple(each for value in call.given.all for each in value.things if not isinstance(each, Rows))
    rows = (Rows(tuple(map(state.element, call.given.positional))),) if call.given.rest is None else ()
    value = replace(derived(*call.given.all), things=(*rows, *things)[:MOST_THINGS])
    return replace(value, length=()) if _bounded(call) else value


def _bounded(call: LibraryCall) -> bool:
    """``zip(range(steps), loader)``: so many rounds, on all ranks."""
    both = zip(call.given.nodes, call.given.positional, strict=False)
    return any(isinstance(node, ast.Call) and last_name(node.func) == "range" and not one.length for node, one in both)


def _islice(_: State, call: LibraryCall) -> Value:
    over, bounds = call.first(), call.given.positional[1:]
    return replace(over, length=()) if bounds and not any(each.content for each in bounds) else over


def _divmod(_: State, call: LibraryCall) -> Value:
    each = derived(*call.given.positional)
    return Value(items=(each, each))


def _tqdm(_: State, call: LibraryCall) -> Value:
    return call.first("iterable", otherwise=SAME)


def _isinstance(state: State, call: LibraryCall) -> Value:
    if len(call.given.positional) < 2:
        return UNKNOWN
    value, classes = call.given.positional[:2]
    wanted = [each.cls for each in classes.things if isinstance(each, Type)]
    objects = [each.cls for each in value.things if isinstance(each, Obj)]
    if wanted and objects and len(objects) == len(value.things):
        answers = {any(cls is one or one in state.names.bases(cls) for one in wanted) for cls in objects}
        if len(answers) == 1:
            return constant(answers.pop())
    return Value(content=value.absent, known=False)  # what it is differs no more than whether there is anything


def _super(state: State, call: LibraryCall) -> Value:
    owner = call.frame.function.owner if call.frame.function is not None else None
    if owner is None:
        return UNKNOWN
    base = next((each for each in state.names.bases(owner) if isinstance(each, Class)), None)
    return Value(things=(Obj(base),) if base is not None else (), known=False)


def _partial(_: State, call: LibraryCall) -> Value:
    """Something that can be called, with the first and the named of its arguments given already."""
    ahead, named = tuple(call.given.positional[1:]), tuple(call.given.named.items())
    things = call.first("func").things
    return Value(things=tuple(Applied(each, ahead, named) for each in things if is_callable(each)), known=False)


def _getattr(state: State, call: LibraryCall) -> Value:
    """An attribute by its name, where that is known: a method of an instance, or what stands there for it."""
    base, name, default = call.first(), call.given.get(1, "name"), call.given.get(2, "default")
    if name is None or not isinstance(name.const, str) or not name.const.isidentifier():
        return UNKNOWN if name is None else derived(*call.given.all)
    objects = [each for each in base.things if isinstance(each, (Obj, Mod, Type, Made, Applied))]
    if not objects:
        return derived(*call.given.all)
    value = state.attribute(call.frame, base, name.const, call.node)
    if any(isinstance(each, Partial) and each.owner is None for each in value.things):  # it has none of that name
        return default if default is not None else UNKNOWN
    return value


def _open(state: State, call: LibraryCall) -> Value:
    mode = call.given.get(1, "mode")
    letters = mode.const if mode is not None and isinstance(mode.const, str) else ""
    how = "write" if "w" in letters else "extend" if set(letters) & {"a", "x"} else "read"
    note_file(state, call, how, call.given.node(0, "file"))
    return UNKNOWN


def _getenv(state: State, call: LibraryCall) -> Value:
    name = call.first("key").const
    value = state.variable(call.frame, name, call.node) if isinstance(name, str) else UNKNOWN
    otherwise = call.given.get(1, "default")
    return value if otherwise is not None or not value.content else replace(value, things=(LAUNCHED, NONE))


def _get(state: State, call: LibraryCall) -> Value:
    return _getenv(state, call) if call.name.startswith("os.environ") else UNKNOWN


def _setdefault(_: State, call: LibraryCall) -> Value:
    if call.name.startswith("os.environ"):
        note_variable(call)
    return UNKNOWN


def _world_size(_: State, __: LibraryCall) -> Value:
    return Value(things=(WORLD_SIZE,))


def _alike(_: State, __: LibraryCall) -> Value:
    return SAME


def _initialize(_: State, call: LibraryCall) -> Value:
    return deepspeed_engine(call.given) if call.name.startswith("deepspeed") else UNKNOWN


def _defaultdict(_: State, call: LibraryCall) -> Value:
    """What it makes where a key is missing is what it holds."""
    factory = call.given.get(0, "default_factory")
    made = tuple(Obj(each.cls) for each in factory.things if isinstance(each, Type)) if factory is not None else ()
    return Value(things=(LISTED, *made) if made else (Given({}),))


_BUILTINS: dict[str, Known] = {
    "len": _len, "range": _range, "sorted": _sorted, "set": _set, "frozenset": _set, "list": _same, "tuple": _same,
    "reversed": _same, "iter": _same, "next": _next, "int": _scalar, "float": _scalar, "bool": _scalar, "str": _scalar,
    "min": _scalar, "max": _scalar, "sum": _scalar, "any": _scalar, "all": _scalar, "abs": _scalar, "dict": _dict,
    "enumerate": _enumerate, "zip": _zip, "isinstance": _isinstance, "slice": _slice, "super": _super, "open": _open,
    "getattr": _getattr, "divmod": _divmod,
}  # fmt: skip
#: Wherever a library exports them.
_EXPORTED: dict[str, Known] = {
    "get_world_size": _world_size,
    "is_initialized": _alike,
    "is_available": _alike,
    "initialize": _initialize,
    "fully_shard": fully_shard,
    "getenv": _getenv,
    "partial": _partial,
    "defaultdict": _defaultdict,
    "ModuleList": _same,
    "ModuleDict": _same,
    "get": _get,
    "setdefault": _setdefault,
    "tqdm": _tqdm,
    "islice": _islice,
}


def by_heart(name: str) -> Known | None:
    """What is known of a function by its canonical name."""
    return _EXPORTED.get(name.rpartition(".")[2]) or _BUILTINS.get(name)
