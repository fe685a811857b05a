"""Methods of what is no instance of a class of the program: containers, tensors, paths, scalers, frameworks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.facts.code import alarms, library
from holdfast.facts.code.arguments import Arguments, LibraryCall, given_by
from holdfast.facts.code.collectives import collective
from holdfast.facts.code.effects import Group, Note, Op
from holdfast.facts.code.labour import note_work
from holdfast.facts.code.library.choosing import CHOOSING, chosen, drawn
from holdfast.facts.code.library.classes import library_base, prepared, run_thread
from holdfast.facts.code.modules import dotted, last_name
from holdfast.facts.code.noted import note_file
from holdfast.facts.code.state import State
from holdfast.facts.code.things import (
    BATCH,
    COUNT,
    LISTED,
    MASK,
    NAMED,
    Func,
    Made,
    Obj,
    Rows,
    Type,
    given_in,
    guarded,
    is_callable,
    listed,
    outputs,
    told,
)
from holdfast.facts.code.values import SAME, UNKNOWN, Kind, Value, constant, derived, join, merged

_CONTAINER = frozenset(
    {"append", "extend", "add", "update", "insert", "setdefault", "appendleft", "pop", "remove", "clear"}
)
_BOUND = re.compile(r"threshold|limit|toleran|\bmax_|\bmin_|(^|\.)(config|args|cfg)\.")
_NORM = re.compile(r"(?:grad|total|global)\w*_norm$")
_SIZES = frozenset({"numel", "size", "dim", "nelement"})
#: They take a tensor to another device, and leave it as it is.
_MOVING = frozenset({"to", "cuda"})
#: Of a name with the rank in it they say the same on all ranks.
_OF_TEXT = frozenset({"startswith", "endswith", "strip", "split", "rsplit", "partition", "rpartition", "lower"})
_BEGINNINGS = frozenset({"startswith", "endswith"})
#: What does not tell how a name begins and ends: which rank asks.
_OWN = frozenset({Kind.OWN})
_OF_NAMES = frozenset({Kind.OWN, Kind.RANK, Kind.LOCAL_RANK})
#: Names of what a rank has of its own batch.
_OWN_WORDS = re.compile(
    r"(?:^|_)(?:labels?|targets?|gts?|gt_?\w*|boxes|bboxes|masks?|pos|positives?|valid|kl|finished|done|unfinished)(?:_|$)"
)
#: They tell what is in a tensor.
_ASKING = frozenset({"any", "all", "item", "sum", "max", "min", "count_nonzero"})
#: Without an argument they give one number.
_REDUCING = frozenset({"sum", "mean", "norm", "item", "max", "min", "prod", "std", "var"})
#: Of a model's output these give what can still be sent backward, all of it; others the first of it.
_KEEPING = frozenset(
    {"sum", "mean", "pow", "log", "float", "to", "train", "eval", "cuda", "half", "exp", "abs"}
)  # fmt: skip


def method_call(state: State, call: LibraryCall) -> Value | None:
    """A method of a library's instance, or of something of which nothing is known; None where that is all."""
    kind = "torch.distributed.fsdp" if call.kind == "wrapped:fsdp" else call.kind
    found = library.METHODS.get(kind, {}).get(call.name)
    if found is None and not kind:
        found = library.DISTINCT.get(call.name)
    if found is not None:
        return collective(state, call, found)
    if kind.startswith("output:") and call.name == "backward":
        call.frame.note(Op("backward", call.place, Group.WORLD, "backward"))
        return SAME
    if call.name in _CONTAINER and call.written is not None:
        return _container(state, call)
    if call.name in library.GUARDS and any(map(is_callable, call.first("function").things)):
        guard = state.source(call.frame, library.GUARDS[call.name], call.node)
        return guarded(call.first("function"), guard)
    asked = _asked(state, call)
    if asked is not None:
        return asked
    known = _BY_HEART.get(call.name)
    value = known(state, call) if known is not None else None
    return value if value is not None else _plain(state, call)


def _container(state: State, call: LibraryCall) -> Value:
    """What is put into a container, or taken out of it."""
    values = call.given.all
    things = tuple(each for one in values for each in one.things)
    grows = call.name not in ("update", "setdefault") or bool(call.frame.control)
    if call.written is not None:
        value = derived(*values) if values else SAME
        # a list is asked whether there is anything in it, more often than for what that is
        value = replace(value, content=tuple(each for each in value.content if each.kind is not Kind.DATA))
        state.change(call.frame, call.written, value, grows=grows, things=things)
    key, named = call.first().const, given_in(call.receiver) or {}
    if call.name == "pop" and isinstance(key, str) and key in named:
        return named[key]
    return replace(call.receiver, known=False) if call.name in ("pop", "setdefault") else SAME


def _asked(state: State, call: LibraryCall) -> Value | None:
    """Questions that ranks answer each for itself."""
    receiver = call.receiver
    if call.name in library.FILE_TESTS and not receiver.agreed:
        return Value(merged(state.source(call.frame, Kind.FILES, call.node), receiver.content))
    if call.name in library.DATA_TESTS:
        return predicate(state, call, receiver)
    if call.name in _ASKING and not receiver.agreed and (BATCH in receiver.things or _is_own(call)):
        whose = Kind.DATA if BATCH in receiver.things else Kind.NAMED
        return Value(merged(state.source(call.frame, whose, call.node), receiver.content))
    kind = library.VARYING_NAMES.get(call.name)
    if kind is not None and not receiver.agreed:
        return Value(state.source(call.frame, kind, call.node))
    return None


def _is_own(call: LibraryCall) -> bool:
    """By its name it is what each rank has of its own batch, where nothing is known of it: ``(labels > 0).sum()``."""
    receiver = call.receiver
    if receiver.known or receiver.content or not isinstance(call.written, (ast.Name, ast.Attribute)):
        return False
    return bool(_OWN_WORDS.search(last_name(call.written)))


def predicate(state: State, call: LibraryCall, value: Value) -> Value:
    """Is it finite? Of what each rank has for itself the answer differs; of what was agreed it does not."""
    if value.agreed or (value.known and not value.content) or _is_bound(call.node) or _is_norm(call.node):
        return Value(content=value.content)
    return Value(merged(state.source(call.frame, Kind.DATA, call.node), value.content))


def _is_bound(node: ast.AST) -> bool:
    """``math.isfinite(config.threshold)`` asks whether there is one, of what all ranks were started with."""
    asked = node.args[0] if isinstance(node, ast.Call) and node.args else None
    return isinstance(asked, (ast.Name, ast.Attribute)) and bool(_BOUND.search(ast.unparse(asked)))


def _is_norm(node: ast.AST) -> bool:
    """``isfinite(grad_norm)``, ``total_norm.isnan()``: gradients are averaged over ranks, and so is their norm."""
    asked = (
        node.args[0]
        if isinstance(node, ast.Call) and node.args
        else getattr(getattr(node, "func", None), "value", None)
    )
    return isinstance(asked, (ast.Name, ast.Attribute)) and bool(_NORM.search(dotted(asked)))


def _plain(state: State, call: LibraryCall) -> Value:
    receiver = call.receiver
    if call.name in _SIZES:
        count = (COUNT,) if BATCH in receiver.things else ()
        return Value(content=receiver.length, known=receiver.known, things=count)
    value = derived(receiver, *(() if call.name in _MOVING else call.given.all))
    if call.name in CHOOSING:
        many = merged(value.length, chosen(state, call, receiver))
        value = replace(value, length=many, inner=many)
    if BATCH in receiver.things and call.name not in _ASKING:
        masks = (MASK,) if MASK in receiver.things and call.name not in CHOOSING else ()
        return replace(value, known=False, things=(BATCH, *masks))
    if NAMED in receiver.things:
        value = replace(value, things=(NAMED,))
    if call.name in _OF_TEXT:
        said = _OF_NAMES if call.name in _BEGINNINGS else _OWN
        value = replace(value, content=tuple(each for each in value.content if each.kind not in said))
    if call.name in _REDUCING and not call.given.all:
        value = replace(value, length=(), inner=())  # one number
    kept = tuple(
        each for each in receiver.things if isinstance(each, Made) and each.name.startswith(("output:", "wrapped:"))
    )
    things = kept if call.name in _KEEPING else kept[:1] or value.things
    return replace(value, known=receiver.agreed and value.known, agreed=receiver.agreed, things=things)


# ---- methods known by heart; None where it is another's method of that name


def _step(state: State, call: LibraryCall) -> Value | None:
    """GradScaler skips the optimizer's step on a rank that finds Inf; a plateau is what a schedule's metric shows."""
    if call.kind == "plateau":
        metric = call.first("metrics")
        if not metric.agreed and (metric.content or outputs((metric,)) or BATCH in metric.things):
            why = metric.content or state.source(call.frame, Kind.DATA, call.node)
            call.frame.note(Note("state", call.place, state.text(call.node), why))
        return SAME
    if call.kind != "scaler" or not call.given.all:
        return None
    optimizer = call.given.all[0]
    fault = state.source(call.frame, Kind.DATA, call.node, "GradScaler skips the step where it finds Inf")
    with call.frame.apart(fault) as inner:
        for thing in optimizer.things:
            method = state.names.method(thing.cls, "step") if isinstance(thing, Obj) else None
            if method is not None:
                state.invoke(call.frame, call.node, Func(method, None, optimizer), Arguments())
    call.frame.effects.extend(inner)
    return SAME


def _unscale(_: State, call: LibraryCall) -> Value:
    if call.kind == "scaler":
        call.frame.note(Note("unscale", call.place))
    return SAME


def _backward(_: State, call: LibraryCall) -> Value:
    if outputs(call.given.all) or call.kind in ("accelerate.Accelerator", "lightning.Fabric"):
        call.frame.note(Op("backward", call.place, Group.WORLD, "backward"))
    else:
        call.frame.note(Note("backward", call.place))
    return SAME


def _set_epoch(_: State, call: LibraryCall) -> Value:
    call.frame.note(Note("set_epoch", call.place))
    return SAME


def _prepare(_: State, call: LibraryCall) -> Value | None:
    return prepared(call.given) if call.kind == "accelerate.Accelerator" else None


def _setup(_: State, call: LibraryCall) -> Value | None:
    return prepared(call.given) if call.kind == "lightning.Fabric" else None


def _format(_: State, call: LibraryCall) -> Value:
    value = derived(call.receiver, *call.given.all)
    return told(value)


def _get(_: State, call: LibraryCall) -> Value:
    content = merged(call.receiver.content, *(each.content for each in call.given.all))
    key, named = call.first().const, given_in(call.receiver)
    if named is not None and isinstance(key, str):
        default = call.given.get(1, "default")
        return named[key] if key in named else default if default is not None else constant(None)
    absent = merged(call.receiver.length, *(each.content for each in call.given.positional))
    return Value(content, length=call.receiver.inner, absent=absent, known=False)


def _items(_: State, call: LibraryCall) -> Value | None:
    """The pairs of a dict: what it holds may be instances of the program's classes."""
    named = given_in(call.receiver)
    held = join(named.values()) if named else replace(call.receiver, things=_held(call.receiver))
    if not held.things or call.given.all:
        return None
    key = Value(call.receiver.content, known=False)
    rows = (Rows((key, held)),)
    return Value(call.receiver.content, call.receiver.length, call.receiver.order, known=False, things=rows)


def _values(_: State, call: LibraryCall) -> Value | None:
    named = given_in(call.receiver)
    things = join(named.values()).things if named else _held(call.receiver)
    return replace(call.receiver, known=False, things=listed(things)) if things and not call.given.all else None


def _held(receiver: Value) -> tuple[Any, ...]:
    """The instances in a dict of them."""
    return tuple(each for each in receiver.things if isinstance(each, (Obj, Func))) if LISTED in receiver.things else ()


def _start(state: State, call: LibraryCall) -> Value:
    for thing in call.receiver.things:
        if isinstance(thing, Obj) and library_base(state.names, thing.cls) == "thread":
            method = state.names.method(thing.cls, "run")
            if method is not None:
                thread = Value(things=(Func(method, None, call.receiver),))
                run_thread(state, call.frame, call.node, thread, Arguments())
    return SAME


def _log(_: State, call: LibraryCall) -> Value | None:
    """Lightning averages over ranks what is logged with ``sync_dist``."""
    if not call.given.says("sync_dist", answer=True) or call.given.says("rank_zero_only", answer=True):
        return None
    call.frame.note(Op("log", call.place))
    return SAME


def _apply(state: State, call: LibraryCall) -> Value | None:
    """A function of one's own for autograd: who applies it goes forward now, and backward later."""
    if call.kind != "autograd":
        return None
    value, given = UNKNOWN, call.given
    for cls in (each.cls for each in call.receiver.things if isinstance(each, Type)):
        names = state.names
        with_context = names.method(cls, "setup_context") is None
        forward, backward = names.method(cls, "forward"), names.method(cls, "backward")
        if forward is not None:
            bound = UNKNOWN if with_context else None
            value = state.invoke(call.frame, call.node, Func(forward, None, bound), given)
        if backward is not None:
            state.invoke(call.frame, call.node, Func(backward), given_by(*[UNKNOWN] * len(backward.parameters)))
    return value


def _seed(_: State, call: LibraryCall) -> Value:
    return Value(drawn(merged(call.receiver.content, *(each.content for each in call.given.all))), known=False)


def _write(state: State, call: LibraryCall) -> Value:
    note_file(state, call, "write", call.written)
    return SAME


def _map(_: State, call: LibraryCall) -> None:
    note_work(call)


def _read(state: State, call: LibraryCall) -> Value:
    note_file(state, call, "read", call.written)
    return Value(content=call.receiver.content, known=False)


_BY_HEART: dict[str, Callable[[State, LibraryCall], Value | None]] = {
    "step": _step,
    "unscale_": _unscale,
    "backward": _backward,
    "set_epoch": _set_epoch,
    "prepare": _prepare,
    "setup": _setup,
    "get": _get,
    "format": _format,
    "items": _items,
    "values": _values,
    "start": _start,
    "log": _log,
    "apply": _apply,
    "manual_seed": _seed,
    "write_text": _write,
    "write_bytes": _write,
    "read_text": _read,
    "read_bytes": _read,
    "map": _map,
    "submit": alarms.submit,
    "result": alarms.result,
}
