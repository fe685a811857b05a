"""Execute ``with`` and ``try`` blocks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from holdfast.lint.abstract_domain.effects import (
    PROCESS_EXITS,
    TURN_BEGINS,
    TURN_ENDS,
    YIELD_MARKER,
    EffectPath,
    FunctionCall,
    Marker,
    Try,
    final_exit,
    summarize_path,
)
from holdfast.lint.abstract_domain.exceptions import catches
from holdfast.lint.abstract_domain.values import UNKNOWN, TaintKind, Value, join_values
from holdfast.lint.abstract_state.abstract_objects import FunctionObject, Instance, LibraryName
from holdfast.lint.abstract_state.arguments import Arguments, positional_arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.heap import apply_change, change_exit_facts, return_facts
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.alarms import ALARM_SET, insert_block
from holdfast.lint.divergence.failures import VaryingTests, iter_failures
from holdfast.lint.divergence.futures import FUNCTION_TARGETS, Block
from holdfast.lint.divergence.process_first import record_collective_in_turn
from holdfast.lint.interpreter.assignments import assign
from holdfast.lint.interpreter.branch_merge import restore_names, taint_by_handler
from holdfast.lint.sources.modules import dotted_name, last_name

_JOINS = frozenset({"join", "join_uneven_inputs"})
#: A function that returns a process group, or raises if there is none yet.
_GROUP_GETTER = re.compile(r"get_\w*(?:group|mesh)\w*|get_\w*(?:rank|world_size)")
#: A context in which ranks go one after another, or have paths of their own.
_TURNS = re.compile(r"first|lock|rank|main|mutex|patch|raises", re.IGNORECASE)


class BlockExecutor:
    """Executes ``with`` and ``try`` blocks."""

    def __init__(self, state: InterpreterState) -> None:
        self.state = state

    @property
    def executors(self) -> dict[type[ast.stmt], Callable[..., None]]:
        """Return the method for each kind of statement."""
        return {
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.Try: self._try,
            ast.TryStar: self._try,
        }

    def _with(self, frame: Frame, node: ast.With | ast.AsyncWith) -> None:
        joined = 0
        limits: list[EffectPath] = []
        suppressed: list[str] = []
        blocks: list[tuple[Value, Value]] = []
        on_exit: list[tuple[ast.expr, FunctionObject]] = []
        for item in node.items:
            value = self.state.evaluate(frame, item.context_expr)
            limits += _pop_alarm_manager(frame)
            suppressed += self._suppressed(frame, item.context_expr)
            if frame.entered_facts is not None and isinstance(item.context_expr, ast.Call):
                blocks.append((frame.entered_facts, frame.facts))
                return_facts(frame.scope.names, frame.entered_facts)
            value, exit_calls = self._enter_context(frame, item.context_expr, value)
            on_exit += exit_calls
            called = (
                item.context_expr.func
                if isinstance(item.context_expr, ast.Call)
                else item.context_expr
            )
            if (isinstance(called, ast.Attribute) and called.attr in _JOINS) or last_name(
                called
            ) == "Join":
                joined += 1
            if item.optional_vars is not None:
                assign(self.state, frame, item.optional_vars, value)
        frame.join_depth += joined
        returned = len(frame.exit_facts)
        with frame.collect_effects() as inner:
            self.state.run_block(frame, node.body)
            ended = frame.ended
        in_block = frame.facts
        block = tuple(inner)
        for path in reversed(limits):
            block = insert_block(path, block)
        with frame.collect_effects() as last:
            for expression, method in reversed(on_exit):
                arguments = positional_arguments(*[UNKNOWN] * 3)
                if self.state.invoke(frame, expression, method, arguments).const is True:
                    suppressed.append("Exception")
        for entered, left in reversed(blocks):
            return_facts(frame.scope.names, apply_change(frame.facts, entered, left))
        change_exit_facts(frame, returned, in_block)
        for caught in suppressed:
            at = frame.location(node)
            block = (Try(at, block, ((at, caught, ()),), ()),)
        frame.effects.extend((*self._as_turn(frame, node, block), *last))
        frame.join_depth -= joined
        frame.ended = ended and not suppressed

    def _as_turn(
        self, frame: Frame, node: ast.With | ast.AsyncWith, block: EffectPath
    ) -> EffectPath:
        """Return the block with markers around it if ranks may run it in turn."""
        if not block or not any(
            _TURNS.search(self.state.unparse(item.context_expr)) for item in node.items
        ):
            return block
        at = frame.location(node)
        record_collective_in_turn(self.state, frame, node, block)
        return Marker(TURN_BEGINS, at), *block, Marker(TURN_ENDS, at)

    def _suppressed(self, frame: Frame, node: ast.expr) -> list[str]:
        """Return the exceptions that a context manager just entered suppresses."""
        if isinstance(node, ast.Call) and LibraryName("contextlib.suppress") in (
            self.state.evaluate(frame, node.func).objects
        ):
            return [", ".join(map(self.state.unparse, node.args))] if node.args else []
        last = frame.effects[-1] if frame.effects else None
        if not isinstance(last, FunctionCall) or YIELD_MARKER not in last.callee.tags:
            return []
        return [
            exception
            for effect in last.callee.path
            if isinstance(effect, Try) and YIELD_MARKER in summarize_path(effect.body).tags
            for _, exception, handled in effect.handlers
            if final_exit(handled) is None
        ]

    def _enter_context(
        self, frame: Frame, node: ast.expr, value: Value
    ) -> tuple[Value, list[tuple[ast.expr, FunctionObject]]]:
        """Enter a context manager of the program; return its value and the exit method to call."""
        on_exit, entered = [], []
        for obj in value.objects_of(Instance):
            enter = self.state.symbols.find_method(obj.cls, "__enter__")
            leave = self.state.symbols.find_method(obj.cls, "__exit__")
            if enter is not None and leave is not None:
                entered.append(
                    self.state.invoke(frame, node, FunctionObject(enter, None, value), Arguments())
                )
                on_exit.append((node, FunctionObject(leave, None, value)))
        return (join_values(entered) if entered else value), on_exit

    def _try(self, frame: Frame, node: ast.Try | ast.TryStar) -> None:
        names = frame.scope.names
        before = dict(names)
        returned = len(frame.exit_facts)
        frame.try_depth += 1
        with frame.collect_effects() as body:
            self.state.run_block(frame, [*node.body, *node.orelse])
            ended = frame.ended
        frame.try_depth -= 1
        block = Block(tuple(body), FUNCTION_TARGETS)
        failures = list(iter_failures(block, VaryingTests.NONE)) if node.handlers else []
        after = dict(names)
        handlers = []
        open_ends = [] if ended else [after]
        for handler in node.handlers:
            restore_names(
                names,
                {
                    name: join_values((value, after.get(name, value)))
                    for name, value in before.items()
                },
            )
            caught = self.state.unparse(handler.type) if handler.type else ""
            varies = any(catches(caught, failure.exception) for failure in failures)
            kind = TaintKind.DATA if varies else TaintKind.FAULT
            fault = self.state.taint_source(frame, kind, handler, f"except {caught}".strip())
            with frame.collect_effects(fault) as inner:
                if handler.name:
                    names[handler.name] = Value(content=fault)
                self.state.run_block(frame, handler.body)
                if not frame.ended:
                    open_ends.append(
                        {
                            name: taint_by_handler(held_value, after.get(name), fault)
                            for name, held_value in names.items()
                        }
                    )
                ended = ended and frame.ended
            handlers.append((frame.location(handler), caught, tuple(inner)))
        names.clear()
        for open_end in open_ends or [after]:
            for name, value in open_end.items():
                names[name] = value if name not in names else join_values((names[name], value))
        in_block = frame.facts
        if _ends_process(node.finalbody):  # perhaps while an exception is raised
            for name, value in before.items():
                names[name] = join_values((value, names.get(name, value)))
        with frame.collect_effects() as last:
            self.state.run_block(frame, node.finalbody)
        change_exit_facts(frame, returned, in_block)
        if body or last or any(path for _, _, path in handlers):
            alike = all(map(_fails_alike, node.body))
            frame.add_effect(
                Try(frame.location(node), tuple(body), tuple(handlers), tuple(last), alike)
            )
        frame.ended = (ended and (bool(final_exit(body)) or not open_ends)) or bool(
            final_exit(last)
        )


def _fails_alike(statement: ast.stmt) -> bool:
    """Return True for an import, as all ranks have the same packages, and for a state's getter.

    ``try: get_group() except: create_groups()`` creates them on all ranks.
    """
    match statement:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            getter = _GROUP_GETTER.fullmatch(last_name(call.func))
            return getter is not None and not call.args and not call.keywords
        case _:
            return False


def _ends_process(block: list[ast.stmt]) -> bool:
    last = block[-1].value if block and isinstance(block[-1], ast.Expr) else None
    return isinstance(last, ast.Call) and dotted_name(last.func) in PROCESS_EXITS


def _pop_alarm_manager(frame: Frame) -> list[EffectPath]:
    """Pop and return the path of a context manager just entered that sets a time limit."""
    last = frame.effects[-1] if frame.effects else None
    if isinstance(last, FunctionCall) and {ALARM_SET, YIELD_MARKER} <= last.callee.tags:
        frame.effects.pop()
        return [last.callee.path]
    return []
