"""Calls into libraries: what the tables of :mod:`library` say of them, carried out on values."""

from __future__ import annotations

import ast

from holdfast.facts.code import library
from holdfast.facts.code.arguments import Arguments, LibraryCall
from holdfast.facts.code.collectives import collective
from holdfast.facts.code.library.choosing import CHOOSING, chosen, drawn
from holdfast.facts.code.library.classes import make
from holdfast.facts.code.library.functions import by_heart
from holdfast.facts.code.library.methods import predicate
from holdfast.facts.code.modules import is_class_name
from holdfast.facts.code.noted import note_call
from holdfast.facts.code.state import State
from holdfast.facts.code.things import ARRAY, BATCH, LAUNCHED, NAMED, Func, Made, guarded, is_callable, outputs
from holdfast.facts.code.values import UNKNOWN, Kind, Value, merged, picked

#: What makes a tensor of a size that is given, and which of its arguments are no sizes.
_SIZED = frozenset(
    {"arange", "zeros", "ones", "empty", "full", "randn", "rand", "randint", "eye", "linspace", "randperm"}
)
_JOINING = frozenset(
    {"stack", "cat", "concat", "concatenate", "hstack", "vstack", "array", "tensor", "as_tensor", "from_numpy"}
)
_SPLITTING = frozenset({"split", "chunk", "array_split", "tensor_split", "split_with_sizes"})
#: Where a tensor lies says nothing of what is in it.
_WHERE = ("device", "pin_memory")
#: Of these no function answers None on some ranks and a number on others.
_NUMERIC = ("torch.", "numpy.", "math.")
_SEEDED = frozenset({"default_rng", "Generator", "Random", "RandomState", "manual_seed"})


def library_call(state: State, call: LibraryCall) -> Value:
    """A call of a library's function or class by its canonical name."""
    value = _by_table(state, call)
    if value is not None:
        return value
    known = by_heart(call.name)
    if known is not None:
        return known(state, call)
    if call.name.startswith("torchmetrics."):
        alone = call.given.says("sync_on_compute", answer=False)
        return Value(things=() if alone else (Made("torchmetrics.Metric"),))
    guard = library.GUARDS.get(call.name.rpartition(".")[2])
    if guard is not None and any(map(is_callable, call.first().things)):  # rank_zero_only(function)
        return guarded(call.first(), state.source(call.frame, guard, call.node))
    note_call(state, call)
    return _plain(state, call)


def _by_table(state: State, call: LibraryCall) -> Value | None:
    name = call.name
    what = library.CALLS.get(name)
    if what is not None:
        return collective(state, call, what)
    made = library.CLASSES.get(name)
    if made is not None:
        return make(state, call, made)
    if name in library.PREDICATES:
        return predicate(state, call, call.given.all[0] if call.given.all else UNKNOWN)
    kind = library.VARYING.get(name)
    if kind is not None:
        numbered = kind in (Kind.RANK, Kind.LOCAL_RANK) and not call.given.all  # of a group: -1 for who is no member
        return Value(state.source(call.frame, kind, call.node), things=(LAUNCHED,) if numbered else ())
    return None


def _plain(state: State, call: LibraryCall) -> Value:
    """A function of which no table tells: by its name, and else it gives what differs where its arguments do."""
    where = [call.given.named[each] for each in _WHERE if each in call.given.named]
    values, last = (
        [each for each in call.given.all if not any(each is one for one in where)],
        call.name.rpartition(".")[2],
    )
    content = merged(*(each.content for each in values))
    length = merged(*(each.length for each in values))
    known = all(each.known for each in values)
    if last in _SIZED and call.name.startswith(("torch.", "numpy.", "np.")):
        length = merged(*(each.content for each in _sizes(last, call.given)))
        return Value(content, length, known=known, things=(ARRAY,))
    if last in _JOINING:
        pieces = call.given.positional or values  # not the device= of another tensor
        length = merged(*(each.length for each in pieces))
        inner = merged(*(each.inner for each in pieces))
        agreed = any(each.agreed for each in values)
        return Value(content, merged(length, inner), known=known, things=_of_batch(pieces), agreed=agreed)
    if last in _SPLITTING:
        return Value(content, known=False, things=(Made("pieces"),))
    if last in _SEEDED:
        return Value(drawn(content))
    return _computed(state, call, values, last)


def _computed(state: State, call: LibraryCall, values: list[Value], last: str) -> Value:
    """What a library makes of values, differs where they do."""
    content, length = merged(*(each.content for each in values)), merged(*(each.length for each in values))
    if last in CHOOSING or (last == "where" and len(values) == 1):
        count = merged(length, chosen(state, call, *values))  # of ``where`` a tuple of as many
        return Value(content, count, inner=count if last in ("where", "nonzero") else (), known=False)
    named: tuple[Made, ...] = (NAMED,) if any(NAMED in each.things for each in values) else ()
    if not named and call.name.startswith("torch.") and not is_class_name(last):
        named = (*outputs(values), *_of_batch(values))
    functions = tuple(each for value in values for each in value.things if isinstance(each, Func))
    if functions:
        _hand_over(state, call)
    # A size that all ranks agreed on, or a loss, which is one number.
    sized = any(each.agreed for each in values[1:]) or last.endswith("_loss") or last == "cross_entropy"
    content = () if is_class_name(last) else picked(content)  # of an instance of a class nothing is believed
    agreed = bool(values) and values[0].agreed
    absent = () if call.name.startswith(_NUMERIC) else content
    return Value(content, () if sized else length, absent=absent, known=False, things=named, agreed=agreed)


def _of_batch(values: list[Value]) -> tuple[Made, ...]:
    """What is computed of a batch is a rank's own as that is."""
    return (BATCH,) if any(BATCH in each.things for each in values) else ()


def _sizes(last: str, given: Arguments) -> list[Value]:
    if last == "full":
        return given.positional[:1]
    return given.positional[2:] if last == "randint" else given.positional


def _hand_over(state: State, call: LibraryCall) -> None:
    """A function handed to a library: a process runs it, and its first argument is that one's number."""
    if not call.name.endswith(("multiprocessing.spawn", "mp.spawn")) or not isinstance(call.node, ast.Call):
        return
    worker, extra = call.given.get(0, "fn"), call.given.get(1, "args")
    rank = Value(content=state.source(call.frame, Kind.RANK, call.node, "the process's number"))
    items = (rank, *((extra.items or ()) if extra is not None else ()))
    for thing in worker.things if worker is not None else ():
        if isinstance(thing, Func):
            state.invoke(call.frame, call.node, thing, Arguments(list(items), [None] * len(items)))
