"""Limits of time that end a collective on one rank: alarms whose handler raises, and waiting for a result so long."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.facts.code.arguments import Arguments, LibraryCall, given_by
from holdfast.facts.code.effects import (
    YIELD,
    Called,
    Effect,
    Exit,
    Fork,
    Loop,
    Note,
    Op,
    Place,
    Try,
    Way,
    ends,
    operations,
)  # fmt: skip
from holdfast.facts.code.modules import dotted, last_name
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.raising import catches
from holdfast.facts.code.state import State
from holdfast.facts.code.things import Func, Lib, Submitted
from holdfast.facts.code.values import SAME, UNKNOWN, Kind, Value

#: What a limit begins and ends with.
ON, OFF = "alarm", "alarm over"

#: By these a function waits for what threads do.
_WAITING = frozenset({"result", "exception", "wait", "as_completed", "shutdown", "join"})


def note_alarm(state: State, call: LibraryCall) -> None:
    """``signal.alarm`` and ``setitimer`` begin or end a limit; ``signal.signal`` says what is raised at its end."""
    if call.name == "signal.signal":
        signal, handler = call.given.get(0, "signalnum"), call.given.get(1, "handler")
        if signal is not None and Lib("signal.SIGALRM") in signal.things and handler is not None:
            _learn(state, handler)
        elif handler is not None:
            _handle(state, call, handler)
        return
    seconds = call.given.get(0 if call.name == "signal.alarm" else 1, "seconds")
    call.frame.note(Note(OFF if seconds is not None and seconds.const == 0 else ON, call.place))


def _handle(state: State, call: LibraryCall, handler: Value) -> None:
    """What a handler sets it sets where the signal came, and elsewhere later or never."""
    came = state.source(call.frame, Kind.DATA, call.node, "a signal that has come by now")
    for thing in handler.things:
        if isinstance(thing, Func):
            with call.frame.apart(came):
                state.invoke(call.frame, call.node, thing, given_by(UNKNOWN, UNKNOWN))


def _learn(state: State, handler: Value) -> None:
    for thing in handler.things:
        for node in ast.walk(thing.function.node) if isinstance(thing, Func) else ():
            if isinstance(node, ast.Raise) and node.exc is not None:
                raised = dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
                if raised and not state.alarm:
                    state.alarm = raised.rpartition(".")[2]
                    state.memory.wrote(state, "alarm")


def submit(state: State, call: LibraryCall) -> Value | None:
    """A function is handed to a pool of threads: what it enters, it enters where its result is waited for."""
    if call.kind != "executor" or not call.given.positional:
        return None
    given = call.given
    rest = Arguments(given.positional[1:], given.nodes[1:], given.named, given.named_nodes, given.rest)
    with call.frame.apart() as inner:
        state.call(call.frame, call.node, given.positional[0], rest)
    if inner and not _waits(call):
        state.memory.now.threads.append((call.place, tuple(inner)))
    return Value(things=(Submitted(tuple(inner)),), known=False) if inner else UNKNOWN


def _waits(call: LibraryCall) -> bool:
    """The function that hands it over waits for it itself, and goes on alone."""
    frame, line = call.frame, getattr(call.node, "lineno", 0)
    tree = frame.function.node if frame.function is not None else frame.scope.module.tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno >= line and last_name(node.func) in _WAITING:
            return True
        if isinstance(node, ast.With) and node.lineno <= line <= (node.end_lineno or line):
            entered = [each.context_expr for each in node.items]
            if any(isinstance(each, ast.Call) and last_name(each.func).endswith("Executor") for each in entered):
                return True
    return False


def result(_: State, call: LibraryCall) -> Value | None:
    """The result of such a function is waited for, perhaps for so long and no longer."""
    submitted = [thing for thing in call.receiver.things if isinstance(thing, Submitted)]
    limit = call.given.get(0, "timeout")
    limited = limit is not None and limit.const is not None
    for thing in submitted:
        if limited:
            call.frame.note(Note(ON, call.place, "TimeoutError"))
        call.frame.effects.extend(thing.way)
        if limited:
            call.frame.note(Note(OFF, call.place))
    return SAME if submitted else None


def within(way: Sequence[Effect], block: Way) -> Way:
    """The way of a context manager that sets a limit, with the block where its ``yield`` stands."""
    out: list[Effect] = []
    for effect in way:
        match effect:
            case Note(name=name):
                out.extend(block if name == YIELD else (effect,))
            case Try(body=body, handlers=handlers, last=last):
                replaced = tuple((place, what, within(handled, block)) for place, what, handled in handlers)
                out.append(
                    msgspec.structs.replace(
                        effect, body=within(body, block), handlers=replaced, last=within(last, block)
                    )
                )
            case Fork(yes=yes, no=no):
                out.append(msgspec.structs.replace(effect, yes=within(yes, block), no=within(no, block)))
            case Exit(how="return"):
                break
            case _:
                out.append(effect)
    return tuple(out)


class _Left(msgspec.Struct, frozen=True):
    """A collective that a limit may end: what is raised, where the limit was set, and the calls from there."""

    op: Op
    what: str
    since: Place
    chain: tuple[Place, ...]


def abandoned(way: Sequence[Effect], raised: str) -> Iterator[Parting]:
    """Collectives that the end of a limit may leave, with a handler that goes on after it.

    ``raised`` is what the program's handler of alarms raises; empty where it has none.
    """
    return iter(_Walk(raised).through(way))


class _Walk:
    """Goes along a way, and knows where it was limited."""

    def __init__(self, raised: str) -> None:
        self.raised = raised
        self.limit: tuple[str, Place] | None = None
        self.left: list[_Left] = []

    def through(self, way: Sequence[Effect]) -> list[Parting]:
        """What is found on the way; ``left`` are collectives whose exception goes on beyond it."""
        found: list[Parting] = []
        for effect in way:
            match effect:
                case Called(within=body) if ON in body.marks:
                    found += self.through(body.way)
                case Fork(yes=one, no=other) | Loop(body=one, after=other):
                    found += self.through(one) + self.through(other)
                case Try():
                    found += self._guarded(effect)
                case _:
                    self._step(effect)
        return found

    def _step(self, effect: Effect) -> None:
        match effect:
            case Note(name="alarm", place=place, about=about):
                self.limit = (about or self.raised, place) if about or self.raised else None
            case Note(name="alarm over"):
                self.limit = None
            case Op(kind=kind):
                if kind not in ("send", "recv", "init"):
                    self._enter(effect, (effect.place,))
            case Called(within=body, place=place, through=wraps):
                if body.whole and self.limit is not None:
                    op, more = next(operations(body.way))
                    self._enter(op, more if wraps else (place, *more))
            case _:
                pass

    def _enter(self, op: Op, chain: tuple[Place, ...]) -> None:
        if self.limit is not None:
            self.left.append(_Left(op, *self.limit, chain))

    def _guarded(self, block: Try) -> list[Parting]:
        kept, self.left = self.left, []
        found = self.through(block.body)
        for _, what, handled in block.handlers:
            end = ends(handled)
            if end is not None and end.how == "raise":
                continue
            for each in [one for one in self.left if catches(what, one.what)]:
                text = f"except {what}".strip()
                found.append(Parting("alarm", each.chain[0], each.since, text, (), each.op, each.chain))
                self.left.remove(each)
        self.left = kept + self.left
        return found + self.through(block.last)
