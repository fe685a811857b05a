"""Find collectives that a time limit can abort on one rank: alarms and timeouts on results."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    YIELD_MARKER,
    Branch,
    Effect,
    EffectPath,
    ExitEffect,
    FunctionCall,
    LoopEffect,
    Marker,
    Operation,
    Try,
    final_exit,
    iter_operations,
)
from holdfast.lint.abstract_domain.exceptions import catches
from holdfast.lint.abstract_domain.values import UNIFORM, UNKNOWN, TaintKind, Value
from holdfast.lint.abstract_state.abstract_objects import FunctionObject, LibraryName, SubmittedTask
from holdfast.lint.abstract_state.arguments import LibraryCall, positional_arguments
from holdfast.lint.abstract_state.heap import forget_changes
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import dotted_name, last_name

#: Markers for the begin and the end of a time limit.
ALARM_SET, ALARM_CLEARED = "alarm", "alarm over"

#: Methods that wait for a thread.
_WAITING_METHODS = frozenset({"result", "exception", "wait", "as_completed", "shutdown", "join"})


def record_alarm(state: InterpreterState, call: LibraryCall) -> None:
    """Record ``signal.alarm``, ``setitimer`` and the exception that a signal handler raises."""
    if call.name == "signal.signal":
        signal, handler = call.arguments.get(0, "signalnum"), call.arguments.get(1, "handler")
        if (
            signal is not None
            and LibraryName("signal.SIGALRM") in signal.objects
            and handler is not None
        ):
            _record_alarm_exception(state, handler)
        elif handler is not None:
            _run_signal_handler(state, call, handler)
        return
    seconds = call.arguments.get(0 if call.name == "signal.alarm" else 1, "seconds")
    call.frame.add_effect(
        Marker(
            ALARM_CLEARED if seconds is not None and seconds.const == 0 else ALARM_SET,
            call.location,
        )
    )


def _run_signal_handler(state: InterpreterState, call: LibraryCall, handler: Value) -> None:
    """Run a signal handler: its assignments differ between ranks, as signals arrive any time."""
    signal_taint = state.taint_source(
        call.frame, TaintKind.DATA, call.node, "a signal that has arrived"
    )
    for obj in handler.objects_of(FunctionObject):
        with call.frame.collect_effects(signal_taint):
            before = call.frame.facts
            state.invoke(call.frame, call.node, obj, positional_arguments(UNKNOWN, UNKNOWN))
            forget_changes(call.frame.scope.names, before)


def set_event(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``event.set()``, which a signal handler or a test may call on some ranks only."""
    name = last_name(call.receiver_node)
    if call.arguments.all_values or not call.frame.control or not name:
        return None
    if name not in state.events:
        state.events[name] = call.frame.control
        state.summaries.record_write("<event>", name)
    return UNIFORM


def is_event_set(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``event.is_set()``."""
    name = last_name(call.receiver_node)
    state.summaries.record_read("<event>", name)
    return Value(state.events[name]) if name in state.events else None


def _record_alarm_exception(state: InterpreterState, handler: Value) -> None:
    for obj in handler.objects:
        for node in ast.walk(obj.function.node) if isinstance(obj, FunctionObject) else ():
            if isinstance(node, ast.Raise) and node.exc is not None:
                raised = dotted_name(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
                if raised and not state.alarm_exception:
                    state.alarm_exception = raised.rpartition(".")[2]
                    state.summaries.record_write("<program>", "alarm")


def submit_to_executor(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``executor.submit``: the effects of the function occur where its result is awaited."""
    if call.receiver_class != "executor" or not call.arguments.positional:
        return None
    first, *positional = call.arguments.positional
    rest = replace(call.arguments, positional=positional, nodes=call.arguments.nodes[1:])
    with call.frame.collect_effects() as inner:
        state.call(call.frame, call.node, first, rest)
    if inner and not _waits_for_result(call):
        state.summaries.current.threads.append((call.location, tuple(inner)))
    return Value(objects=(SubmittedTask(tuple(inner)),), known=False) if inner else UNKNOWN


def _waits_for_result(call: LibraryCall) -> bool:
    """Return True if the submitting function itself waits for the result."""
    frame, line = call.frame, getattr(call.node, "lineno", 0)
    tree = frame.tree
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and node.lineno >= line
            and last_name(node.func) in _WAITING_METHODS
        ):
            return True
        if isinstance(node, ast.With) and node.lineno <= line <= (node.end_lineno or line):
            entered = [item.context_expr for item in node.items]
            if any(
                isinstance(expression, ast.Call) and last_name(expression.func).endswith("Executor")
                for expression in entered
            ):
                return True
    return False


def await_result(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``future.result``, which may have a timeout."""
    submitted = call.receiver.objects_of(SubmittedTask)
    limit = call.arguments.get(0, "timeout")
    limited = limit is not None and limit.const is not None
    for obj in submitted:
        if limited:
            call.frame.add_effect(Marker(ALARM_SET, call.location, "TimeoutError"))
        call.frame.effects.extend(obj.path)
        if limited:
            call.frame.add_effect(Marker(ALARM_CLEARED, call.location))
    return UNIFORM if submitted else None


def insert_block(path: Sequence[Effect], block: EffectPath) -> EffectPath:
    """Return the path of a context manager with a time limit, with ``block`` at its ``yield``."""
    effects: list[Effect] = []
    for effect in path:
        match effect:
            case Marker(name=name):
                effects.extend(block if name == YIELD_MARKER else (effect,))
            case Try(body=body, handlers=handlers, final_body=last):
                replaced = tuple(
                    (location, exception, insert_block(handled, block))
                    for location, exception, handled in handlers
                )
                body, last = insert_block(body, block), insert_block(last, block)
                effects.append(replace(effect, body=body, handlers=replaced, final_body=last))
            case Branch(yes=yes, no=no):
                yes, no = insert_block(yes, block), insert_block(no, block)
                effects.append(replace(effect, yes=yes, no=no))
            case ExitEffect(keyword="return"):
                break
            case _:
                effects.append(effect)
    return tuple(effects)


class _AbandonedCollective(msgspec.Struct, frozen=True):
    """A collective that a time limit may abort, with the exception and where it was set."""

    op: Operation
    exception: str
    set_at: SourceLine
    call_chain: tuple[SourceLine, ...]


def find_abandoned(path: Sequence[Effect], raised: str) -> Iterator[Divergence]:
    """Yield collectives that a time limit may abort in front of a handler that continues.

    ``raised`` is the exception that the program's alarm handler raises; empty if it has none.
    """
    return iter(_AlarmWalker(raised).walk(path))


class _AlarmWalker:
    """Walk a path and track the active time limit."""

    def __init__(self, raised: str) -> None:
        self.raised = raised
        self.limit: tuple[str, SourceLine] | None = None
        self.abandoned: list[_AbandonedCollective] = []

    def walk(self, path: Sequence[Effect]) -> list[Divergence]:
        """Return divergences; ``abandoned`` collects collectives whose exception goes further."""
        divergences: list[Divergence] = []
        for effect in path:
            match effect:
                case FunctionCall(callee=body) if ALARM_SET in body.tags:
                    divergences += self.walk(body.path)
                case Branch(yes=first, no=second) | LoopEffect(body=first, orelse=second):
                    divergences += self.walk(first) + self.walk(second)
                case Try():
                    divergences += self._guarded(effect)
                case _:
                    self._step(effect)
        return divergences

    def _step(self, effect: Effect) -> None:
        match effect:
            case Marker(name="alarm", location=location, detail=detail):
                raised = detail or self.raised
                self.limit = (raised, location) if raised else None
            case Marker(name="alarm over"):
                self.limit = None
            case Operation(kind=kind):
                if kind not in ("send", "recv", "init"):
                    self._enter(effect, (effect.location,))
            case FunctionCall(callee=body, location=location, forwards=wraps):
                if body.sequence and self.limit is not None:
                    op, chain = next(iter_operations(body.path))
                    self._enter(op, chain if wraps else (location, *chain))
            case _:
                pass

    def _enter(self, op: Operation, chain: tuple[SourceLine, ...]) -> None:
        if self.limit is not None:
            self.abandoned.append(_AbandonedCollective(op, *self.limit, chain))

    def _guarded(self, block: Try) -> list[Divergence]:
        outer, self.abandoned = self.abandoned, []
        divergences = self.walk(block.body)
        for _, exception, handled in block.handlers:
            end = final_exit(handled)
            if end is not None and end.keyword == "raise":
                continue
            for collective in [
                candidate for candidate in self.abandoned if catches(exception, candidate.exception)
            ]:
                text = f"except {exception}".strip()
                divergences.append(
                    Divergence(
                        "alarm",
                        collective.call_chain[0],
                        collective.set_at,
                        text,
                        (),
                        collective.op,
                        collective.call_chain,
                    )
                )
                self.abandoned.remove(collective)
        self.abandoned = outer + self.abandoned
        return divergences + self.walk(block.final_body)
