"""Execute statements: assignments, branches, loops and exits."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.lint.abstract_domain.effects import (
    PROCESS_EXIT,
    PROCESS_EXITS,
    UNSHARED_EXIT,
    Branch,
    ExitEffect,
    LoopEffect,
    Marker,
    final_exit,
)
from holdfast.lint.abstract_domain.truth import truth_value
from holdfast.lint.abstract_domain.values import (
    NONE_OBJECT,
    UNIFORM,
    Taint,
    Value,
    combine_values,
    is_rank_only,
    merge_taint,
    set_order,
    taint_value,
)
from holdfast.lint.abstract_state.abstract_objects import (
    SIZED_TENSOR,
    TRIMMED,
    LibraryInstance,
    LibraryName,
    ProcessGroup,
    RankTest,
    operand_marks,
)
from holdfast.lint.abstract_state.arguments import Arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.mutations import mutate
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.divided_sums import record_division
from holdfast.lint.divergence.failures import (
    record_user_failure,
    variable_names,
)
from holdfast.lint.divergence.orders import record_filtered_share
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
    take_sent_objects,
)
from holdfast.lint.interpreter.divergence_recorder import DivergenceRecorder
from holdfast.lint.interpreter.iteration import elements_taken, iterated_value
from holdfast.lint.interpreter.match_cases import as_tests
from holdfast.lint.interpreter.narrowing import apply_narrowing, narrow
from holdfast.lint.library_models.classes import UNSHARDED
from holdfast.lint.library_models.training_steps import record_loss
from holdfast.lint.sources.modules import last_name

_MAX_TEXT = 200
#: The value of a single process agrees with those of the others, which there are none of.
_OF_ONE_PROCESS = Value(agreed=True)
_EXIT_METHODS = frozenset(name.rpartition(".")[2] for name in PROCESS_EXITS)
#: Loops nested deeper run once instead of twice, as each level doubles the work.
_MAX_LOOP_DEPTH = 6


class StatementExecutor:
    """Executes all statements but definitions, imports, ``with`` and ``try`` blocks."""

    def __init__(self, state: InterpreterState, recorder: DivergenceRecorder) -> None:
        self.state = state
        self.recorder = recorder
        self._missing: dict[int, tuple[tuple[str, ...], tuple[str, ...], bool | None]] = {}
        self._matches: dict[int, list[ast.stmt]] = {}

    def _expression(self, frame: Frame, node: ast.Expr) -> None:
        self.state.evaluate(frame, node.value)
        if isinstance(node.value, ast.Call) and not frame.ended:
            self._process_exit(frame, node.value)

    def _process_exit(self, frame: Frame, node: ast.Call) -> None:
        """Record the end of the process; with an error or unknown status, it ends the job."""
        if isinstance(node.func, ast.Attribute) and node.func.attr not in _EXIT_METHODS:
            return
        called = self.state.evaluate(frame, node.func).objects
        names = {obj.name for obj in called if isinstance(obj, LibraryName)}
        if isinstance(node.func, ast.Name) and not called:
            names.add(node.func.id)  # a builtin
        if names.isdisjoint(PROCESS_EXITS):
            return
        status = self.state.evaluate(frame, node.args[0]) if node.args else Value(const=0)
        succeeds = NONE_OBJECT in status.objects or status.const == 0
        keyword = PROCESS_EXIT if succeeds else "raise"
        _record_exit(frame, node, keyword, "" if succeeds else "SystemExit")

    def _assert(self, frame: Frame, node: ast.Assert) -> None:
        test = self.state.evaluate_test(frame, node.test)
        rank_test = next(iter(test.objects_of(RankTest)), None)
        if rank_test is not None:  # other ranks do not get past it
            location = frame.location(node)
            text = f"assert {self.state.unparse(node.test)}"[:_MAX_TEXT]
            left = (ExitEffect("raise", location, "AssertionError"),)
            frame.add_effect(
                Branch(location, text, test.content, test.known, (), left, rank_test=rank_test)
            )

    def _delete(self, frame: Frame, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self.state.evaluate(frame, target.slice)
                mutate(self.state, frame, target, UNIFORM, grows=True)

    def _global(self, frame: Frame, node: ast.Global) -> None:
        frame.globals.update(node.names)

    def _assignment(self, frame: Frame, node: ast.Assign) -> None:
        value = self.state.evaluate(frame, node.value)
        if isinstance(node.value, ast.Subscript) and frame.try_depth:
            index = node.value.slice
            record_user_failure(
                frame, node.value, Arguments([self.state.evaluate(frame, index)], [index])
            )
        frame.assigns_simple = is_simple_expression(node.value)
        for target in node.targets:
            assign(self.state, frame, target, value)
            if isinstance(target, ast.Name):
                frame.rebound.add(target.id)
                frame.elements.pop(target.id, None)
                if frame.try_depth and frame.element_names & variable_names(node.value):
                    frame.element_names.add(target.id)
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
        if isinstance(node.op, ast.Div):
            record_division(self.state, frame, node, old, new)
        grown = isinstance(node.op, ast.Add) and old.items is not None
        padded = (TRIMMED,) if TRIMMED in new.objects else ()
        value = replace(
            combine_values(old, new),
            objects=old.objects if grown else (*operand_marks((old, new)), *padded),
            agreed=old.agreed,
        )
        if SIZED_TENSOR in old.objects:  # the tensor keeps its shape
            value = replace(value, length=old.length, objects=(SIZED_TENSOR, *value.objects))
        frame.assigns_simple = True
        if not count_up(self.state, frame, node, old, new):
            assign(self.state, frame, node.target, value, updates=True)

    # ---- branches

    def _if(self, frame: Frame, node: ast.If) -> None:
        test = self.state.evaluate_test(frame, node.test)
        known = truth_value(test)
        lazy = frame.lazily_created
        absent, created, multiple = self._test_facts(frame, node)
        if known is not None:
            frame.lazily_created = (*lazy, *absent) if known else lazy
            self.state.run_block(frame, node.body if known else node.orelse)
            frame.lazily_created = (*lazy, *created)
            return
        if _tests_own_cache(node, test, absent, created):
            test = replace(test, content=())  # each rank has its own key and misses equally often
        names = frame.scope.names
        before = dict(names)
        differs = () if self._tests_group(frame, node.test) else test.content
        multiple = None if differs else multiple
        frame.lazily_created = (*lazy, *absent)
        narrowing = narrow(self.state, frame, node.test)
        with frame.collect_effects(differs) as yes, apply_narrowing(frame, narrowing, passed=True):
            self._run_side(frame, node.body, single_process=multiple is False)
            yes_ended = frame.ended
        frame.lazily_created = (*lazy, *created)
        after_yes = dict(names)
        restore_names(names, before)
        with frame.collect_effects(differs) as no, apply_narrowing(frame, narrowing, passed=False):
            self._run_side(frame, node.orelse, single_process=multiple is True)
            no_ended = frame.ended
        if no_ended and not yes_ended:
            restore_names(names, after_yes)
        elif not yes_ended:
            take_sent_objects(node, frame.tree, names, after_yes, differs)
            merge_branches(
                names,
                after_yes,
                differs,
                multiple=multiple,
                may_be_single=not differs
                and (test.agreed or checks_multiple_among_others(node.test)),
            )
            clear_absence(names, absent, before, after_yes)
        frame.ended = yes_ended and no_ended
        if multiple is not None and (yes_ended if multiple else no_ended):
            _continue_alone(names)
        if yes or no:
            text = f"if {self.state.unparse(node.test)}"[:_MAX_TEXT]
            rank_test = next((obj for obj in test.objects if isinstance(obj, RankTest)), None)
            parts = frame.divergent_sources(test.content), test.known, tuple(yes), tuple(no)
            frame.add_effect(
                Branch(frame.location(node), text, *parts, rank_test=rank_test, agreed=test.agreed)
            )
        exit_taken = final_exit(yes if yes_ended else no)
        if yes_ended != no_ended and differs:
            _leave(frame, exit_taken, differs)
        if yes_ended and not no_ended:
            drop_none(names, node.test)
            if narrowing is not None:
                names[narrowing.name] = narrowing.no

    def _test_facts(
        self, frame: Frame, node: ast.If
    ) -> tuple[tuple[str, ...], tuple[str, ...], bool | None]:
        """Return what a branch finds missing, what it creates later, and if it tests for ranks.

        Stored by node, as each context of the function needs it.
        """
        facts = self._missing.get(id(node))
        if facts is None:
            facts = self._missing[id(node)] = (
                missing_names(node),
                created_later(node, frame.tree),
                checks_multiple_processes(node.test),
            )
        return facts

    def _run_side(self, frame: Frame, body: Sequence[ast.stmt], *, single_process: bool) -> None:
        """Run one side of a branch; ``single_process``: only a single process takes it."""
        before = len(frame.returns)
        frame.single_process_depth += single_process
        self.state.run_block(frame, body)
        frame.single_process_depth -= single_process
        if single_process:
            alone = (as_uniform(value, _OF_ONE_PROCESS) for value in frame.returns[before:])
            frame.returns[before:] = alone

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
        tests = self._matches.get(id(node))
        if tests is None:
            tests = self._matches[id(node)] = as_tests(node)
        self.state.run_block(frame, tests)

    # ---- loops: run twice, as the first iteration changes the state of the second

    def _for(self, frame: Frame, node: ast.For | ast.AsyncFor) -> None:
        over = iterated_value(self.state, frame, node.iter, self.state.evaluate(frame, node.iter))
        if isinstance(node.target, ast.Name):
            frame.loop_variables.add(node.target.id)
        frame.element_names |= variable_names(node.target)
        frame.elements.update(elements_taken(node))
        self._record_loader(frame, node, over)
        before, outer_order = dict(frame.scope.names), frame.loop_order
        frame.loop_depth += 1
        frame.loop_order = merge_taint(outer_order, over.order)
        for last in (False, True) if frame.loop_depth <= _MAX_LOOP_DEPTH else (True,):
            with frame.collect_effects(over.length) as inner:
                frame.assigns_simple = False
                assign_round(self.state, frame, node.target, node.iter, over)
                self.state.run_block(frame, node.body)
            if not last:
                merge_loop_entry(frame.scope.names, before)
        frame.loop_depth -= 1
        frame.loop_order = outer_order
        for statement in node.body if over.order else ():
            if isinstance(statement, ast.If):
                answer = self.state.evaluate(frame, statement.test)
                record_filtered_share(self.state, frame, statement.test, over, answer)
        with frame.collect_effects() as after:
            self.state.run_block(frame, node.orelse)
        if inner or after:
            text = f"for {self.state.unparse(node.target)} in {self.state.unparse(node.iter)}"[
                :_MAX_TEXT
            ]
            rest = tuple(inner), tuple(after), over.known, frame.join_depth > 0
            order = set_order(over.order)
            frame.add_effect(LoopEffect(frame.location(node), text, over.length, order, *rest))

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
        record_loss(self.state, frame, node)
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
        _record_exit(frame, node, "raise", last_name(raised) if raised is not None else "")

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
        }


def _continue_alone(names: dict[str, Value]) -> None:
    """Make all variables uniform where only a single process continues."""
    names.update((name, as_uniform(value, _OF_ONE_PROCESS)) for name, value in names.items())


def _leave(frame: Frame, exit_taken: ExitEffect | None, differs: Taint) -> None:
    """Add why not all ranks are here any more; a rank that raises has no value."""
    keyword = exit_taken.keyword if exit_taken is not None else ""
    if keyword not in ("raise", PROCESS_EXIT):
        frame.control = merge_taint(frame.control, differs)
        frame.exited = merge_taint(frame.exited, differs)
    if keyword in ("continue", "break"):
        frame.skipped = merge_taint(frame.skipped, differs)


def _record_exit(frame: Frame, node: ast.AST, keyword: str, exception: str = "") -> None:
    if frame.single_process_depth:
        keyword = UNSHARED_EXIT
    frame.add_effect(ExitEffect(keyword, frame.location(node), exception))
    frame.ended = True


def _tests_own_cache(
    node: ast.If, test: Value, absent: tuple[str, ...], created: tuple[str, ...]
) -> bool:
    """Return True for a test by the rank if its own entry or object exists already."""
    if not test.content or not is_rank_only(test.content):
        return False
    return fills_cache(node, absent) if absent else returns_cached(node) or bool(created)
