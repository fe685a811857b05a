"""Execute statements: branches, loops, exits and ``with`` and ``try`` blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.lint.abstract_domain.effects import (
    YIELD_MARKER,
    Branch,
    EffectPath,
    ExitEffect,
    FunctionCall,
    LoopEffect,
    Marker,
    Try,
    final_exit,
)
from holdfast.lint.abstract_domain.values import (
    UNIFORM,
    UNKNOWN,
    TaintKind,
    Value,
    combine_values,
    is_rank_only,
    join_values,
    merge_taint,
    taint_value,
    truth_value,
)
from holdfast.lint.abstract_state.abstract_objects import (
    TRIMMED,
    FunctionObject,
    Instance,
    LibraryInstance,
    ProcessGroup,
    RankTest,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import Arguments, positional_arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.heap import apply_change, change_exit_facts, return_facts
from holdfast.lint.abstract_state.mutations import mutate
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.alarms import ALARM_SET, insert_block
from holdfast.lint.divergence.single_process import (
    as_uniform,
    checks_multiple_among_others,
    checks_multiple_processes,
)
from holdfast.lint.interpreter.assignments import (
    assign,
    assign_round,
    clear_absence,
    count_up,
    created_later,
    fills_cache,
    is_simple_expression,
    mark_agreed_attribute,
    missing_names,
    returns_cached,
)
from holdfast.lint.interpreter.branch_merge import (
    drop_none,
    merge_branches,
    merge_loop_entry,
    restore_names,
    taint_by_handler,
)
from holdfast.lint.interpreter.divergence_recorder import DivergenceRecorder
from holdfast.lint.interpreter.iteration import iterated_value
from holdfast.lint.interpreter.narrowing import apply_narrowing, narrow
from holdfast.lint.library_models.classes import UNSHARDED
from holdfast.lint.sources.modules import last_name

_MAX_TEXT = 200
#: Loops nested deeper run once instead of twice, as each level doubles the work.
_MAX_LOOP_DEPTH = 6
_JOINS = frozenset({"join", "join_uneven_inputs"})


class StatementExecutor:
    """Executes all statements but definitions and imports."""

    def __init__(self, state: InterpreterState, recorder: DivergenceRecorder) -> None:
        self.state = state
        self.recorder = recorder

    def _expression(self, frame: Frame, node: ast.Expr) -> None:
        self.state.evaluate(frame, node.value)

    def _assert(self, frame: Frame, node: ast.Assert) -> None:
        self.state.evaluate(frame, node.test)

    def _delete(self, frame: Frame, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self.state.evaluate(frame, target.slice)
                mutate(self.state, frame, target, UNIFORM, grows=True)

    def _global(self, frame: Frame, node: ast.Global) -> None:
        frame.globals.update(node.names)

    def _assignment(self, frame: Frame, node: ast.Assign) -> None:
        value = self.state.evaluate(frame, node.value)
        frame.assigns_simple = is_simple_expression(node.value)
        for target in node.targets:
            assign(self.state, frame, target, value)
            if isinstance(target, ast.Name):
                frame.rebound.add(target.id)
            elif isinstance(target, ast.Attribute) and value.agreed and not value.content:
                mark_agreed_attribute(self.state, frame, target, node.value)

    def _annotated(self, frame: Frame, node: ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.state.evaluate(frame, node.value)
            frame.assigns_simple = is_simple_expression(node.value)
            assign(self.state, frame, node.target, value)

    def _augmented(self, frame: Frame, node: ast.AugAssign) -> None:
        old, new = self.state.evaluate(frame, node.target), self.state.evaluate(frame, node.value)
        self.recorder.check_update(frame, node, old, new)
        grown = isinstance(node.op, ast.Add) and old.items is not None
        padded = (TRIMMED,) if TRIMMED in new.objects else ()
        value = replace(
            combine_values(old, new),
            objects=old.objects if grown else (*model_outputs((old, new)), *padded),
            agreed=old.agreed,
        )
        frame.assigns_simple = True
        if not count_up(self.state, frame, node, old, new):
            assign(self.state, frame, node.target, value)

    # ---- branches

    def _if(self, frame: Frame, node: ast.If) -> None:
        test = self.state.evaluate_test(frame, node.test)
        known = truth_value(test)
        lazy, absent = frame.lazily_created, missing_names(node)
        if known is not None:
            frame.lazily_created = (*lazy, *absent) if known else lazy
            self.state.run_block(frame, node.body if known else node.orelse)
            frame.lazily_created = (*lazy, *created_later(node, frame.tree))
            return
        if (
            test.content
            and is_rank_only(test.content)
            and (
                fills_cache(node, absent)
                if absent
                else returns_cached(node) or created_later(node, frame.tree)
            )
        ):
            test = replace(test, content=())  # each rank has its own key and misses equally often
        names = frame.scope.names
        before = dict(names)
        differs = () if self._tests_group(frame, node.test) else test.content
        multiple = None if differs else checks_multiple_processes(node.test)
        frame.lazily_created = (*lazy, *absent)
        narrowing = narrow(self.state, frame, node.test)
        with frame.collect_effects(differs) as yes, apply_narrowing(frame, narrowing, passed=True):
            self._run_side(frame, node.body, single_process=multiple is False)
            yes_ended = frame.ended
        frame.lazily_created = (*lazy, *created_later(node, frame.tree))
        after_yes = dict(names)
        restore_names(names, before)
        with frame.collect_effects(differs) as no, apply_narrowing(frame, narrowing, passed=False):
            self._run_side(frame, node.orelse, single_process=multiple is True)
            no_ended = frame.ended
        if no_ended and not yes_ended:
            restore_names(names, after_yes)
        elif not yes_ended:
            merge_branches(
                names,
                after_yes,
                differs,
                multiple=multiple,
                may_be_single=not differs and checks_multiple_among_others(node.test),
            )
            clear_absence(names, absent, before, after_yes)
        frame.ended = yes_ended and no_ended
        if multiple is not None and (yes_ended if multiple else no_ended):
            # only a single process continues
            names.update((name, as_uniform(value)) for name, value in names.items())
        if yes or no:
            text = f"if {self.state.unparse(node.test)}"[:_MAX_TEXT]
            rank_test = next((obj for obj in test.objects if isinstance(obj, RankTest)), None)
            parts = frame.divergent_sources(test.content), test.known, tuple(yes), tuple(no)
            frame.add_effect(
                Branch(frame.location(node), text, *parts, rank_test=rank_test, agreed=test.agreed)
            )
        exit_taken = final_exit(yes if yes_ended else no)
        # a rank that raises has no value
        if (
            (yes_ended != no_ended)
            and differs
            and (exit_taken is None or exit_taken.keyword != "raise")
        ):
            frame.control, frame.exited = (
                merge_taint(frame.control, differs),
                merge_taint(frame.exited, differs),
            )
        if yes_ended and not no_ended:
            drop_none(names, node.test)
            if narrowing is not None:
                names[narrowing.name] = narrowing.no

    def _run_side(self, frame: Frame, body: Sequence[ast.stmt], *, single_process: bool) -> None:
        """Run one side of a branch; ``single_process``: only a single process takes it."""
        before = len(frame.returns)
        frame.single_process_depth += single_process
        self.state.run_block(frame, body)
        frame.single_process_depth -= single_process
        if single_process:
            frame.returns[before:] = map(as_uniform, frame.returns[before:])

    def _tests_group(self, frame: Frame, test: ast.expr) -> bool:
        """Return True for a test whether a rank has a group: usually each rank is in one."""
        node = (
            test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
        )
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            node = node.left
        return isinstance(node, ast.Name) and bool(
            self.state.evaluate(frame, node).objects_of(ProcessGroup)
        )

    def _match(self, frame: Frame, node: ast.Match) -> None:
        subject = self.state.evaluate(frame, node.subject)
        paths: list[EffectPath] = []
        for case in node.cases:
            with frame.collect_effects(subject.content) as inner:
                self.state.run_block(frame, case.body)
            paths.append(tuple(inner))
        text = f"match {self.state.unparse(node.subject)}"
        last = node.cases[-1]
        for_all = (
            last.guard is None
            and isinstance(last.pattern, ast.MatchAs)
            and last.pattern.pattern is None
        )
        rest: EffectPath = paths.pop() if for_all else ()
        for path in reversed(paths):  # each case is a test, the following cases its else side
            if path or rest:
                rest = (
                    Branch(frame.location(node), text, subject.content, subject.known, path, rest),
                )
        frame.effects.extend(rest)

    # ---- loops: run twice, as the first iteration changes the state of the second

    def _for(self, frame: Frame, node: ast.For | ast.AsyncFor) -> None:
        over = iterated_value(self.state, frame, node.iter, self.state.evaluate(frame, node.iter))
        if isinstance(node.target, ast.Name):
            frame.loop_variables.add(node.target.id)
        self._record_loader(frame, node, over)
        before = dict(frame.scope.names)
        frame.loop_depth += 1
        for last in (False, True) if frame.loop_depth <= _MAX_LOOP_DEPTH else (True,):
            with frame.collect_effects(over.length) as inner:
                frame.assigns_simple = False
                assign_round(self.state, frame, node.target, node.iter, over)
                self.state.run_block(frame, node.body)
            if not last:
                merge_loop_entry(frame.scope.names, before)
        frame.loop_depth -= 1
        with frame.collect_effects() as after:
            self.state.run_block(frame, node.orelse)
        if inner or after:
            text = f"for {self.state.unparse(node.target)} in {self.state.unparse(node.iter)}"[
                :_MAX_TEXT
            ]
            rest = tuple(inner), tuple(after), over.known, frame.join_depth > 0
            frame.add_effect(LoopEffect(frame.location(node), text, over.length, over.order, *rest))

    def _record_loader(self, frame: Frame, node: ast.For | ast.AsyncFor, over: Value) -> None:
        for candidate in over.objects:
            if (
                isinstance(candidate, LibraryInstance)
                and candidate.name == "loader"
                and frame.control
                and is_rank_only(frame.control)
            ):
                frame.add_effect(Marker("work", frame.location(node), "a pass over a loader"))
            sampler = (
                candidate.wrapped
                if isinstance(candidate, LibraryInstance) and candidate.name == "loader"
                else None
            )
            if sampler is not None and any(
                isinstance(obj, LibraryInstance) and obj.name == "sampler"
                for obj in sampler.objects
            ):
                frame.add_effect(Marker("shuffled", frame.location(node)))
            if sampler is not None and UNSHARDED in sampler.objects and not frame.control:
                frame.add_effect(Marker("unsharded", frame.location(node)))

    def _while(self, frame: Frame, node: ast.While) -> None:
        before = dict(frame.scope.names)
        frame.loop_depth += 1
        for last in (False, True) if frame.loop_depth <= _MAX_LOOP_DEPTH else (True,):
            with frame.collect_effects() as before_each:
                test = self.state.evaluate_test(frame, node.test)
            with frame.collect_effects(test.content) as inner:
                self.state.run_block(frame, node.body)
            if not last:
                merge_loop_entry(frame.scope.names, before, test.content)
        frame.loop_depth -= 1
        inner[:0] = before_each
        if inner:
            text = f"while {self.state.unparse(node.test)}"[:_MAX_TEXT]
            joined = frame.join_depth > 0
            frame.add_effect(
                LoopEffect(
                    frame.location(node),
                    text,
                    test.content,
                    (),
                    tuple(inner),
                    known=test.known,
                    joined=joined,
                )
            )
        self.state.run_block(frame, node.orelse)

    # ---- exits

    def _return(self, frame: Frame, node: ast.Return) -> None:
        value = self.state.evaluate(frame, node.value)
        self.recorder.check_return(frame, node, value)
        frame.returned_values.append(value)
        frame.exit_facts.append(frame.facts)
        frame.returns.append(taint_value(value, frame.own_control))
        _record_exit(frame, node, "return")

    def _break(self, frame: Frame, node: ast.Break) -> None:
        _record_exit(frame, node, "break")

    def _continue(self, frame: Frame, node: ast.Continue) -> None:
        _record_exit(frame, node, "continue")

    def _raise(self, frame: Frame, node: ast.Raise) -> None:
        self.state.evaluate(frame, node.exc)
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        _record_exit(frame, node, "raise", last_name(raised))

    # ---- blocks

    def _with(self, frame: Frame, node: ast.With | ast.AsyncWith) -> None:
        joined = 0
        limits: list[EffectPath] = []
        blocks: list[tuple[Value, Value]] = []
        on_exit: list[tuple[ast.expr, FunctionObject]] = []
        for item in node.items:
            value = self.state.evaluate(frame, item.context_expr)
            limits += _pop_alarm_manager(frame)
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
        frame.effects.extend(block)
        frame.join_depth -= joined
        for expression, method in reversed(on_exit):
            self.state.invoke(frame, expression, method, positional_arguments(*[UNKNOWN] * 3))
        for entered, left in reversed(blocks):
            return_facts(frame.scope.names, apply_change(frame.facts, entered, left))
        change_exit_facts(frame, returned, in_block)
        frame.ended = ended

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
        with frame.collect_effects() as body:
            self.state.run_block(frame, [*node.body, *node.orelse])
            ended = frame.ended
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
            fault = self.state.taint_source(
                frame, TaintKind.FAULT, handler, f"except {caught}".strip()
            )
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
        with frame.collect_effects() as last:
            self.state.run_block(frame, node.finalbody)
        change_exit_facts(frame, returned, in_block)
        if body or last or any(path for _, _, path in handlers):
            imports = all(
                isinstance(statement, (ast.Import, ast.ImportFrom)) for statement in node.body
            )
            frame.add_effect(
                Try(frame.location(node), tuple(body), tuple(handlers), tuple(last), imports)
            )
        frame.ended = ended and (bool(final_exit(body)) or not open_ends)

    @property
    def executors(self) -> dict[type[ast.stmt], Callable[..., None]]:
        """Return the method for each kind of statement."""
        return {
            ast.Expr: self._expression,
            ast.Assert: self._assert,
            ast.Delete: self._delete,
            ast.Global: self._global,
            ast.Assign: self._assignment,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.If: self._if,
            ast.Match: self._match,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.Return: self._return,
            ast.Break: self._break,
            ast.Continue: self._continue,
            ast.Raise: self._raise,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.Try: self._try,
            ast.TryStar: self._try,
        }


def _pop_alarm_manager(frame: Frame) -> list[EffectPath]:
    """Pop and return the path of a context manager just entered that sets a time limit."""
    last = frame.effects[-1] if frame.effects else None
    if isinstance(last, FunctionCall) and {ALARM_SET, YIELD_MARKER} <= last.callee.tags:
        frame.effects.pop()
        return [last.callee.path]
    return []


def _record_exit(frame: Frame, node: ast.stmt, keyword: str, exception: str = "") -> None:
    frame.add_effect(ExitEffect(keyword, frame.location(node), exception))
    frame.ended = True
