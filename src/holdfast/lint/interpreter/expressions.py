"""Evaluate expressions for all ranks together; effects are added to the frame."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.lint.abstract_domain.effects import YIELD_MARKER, Branch, Marker
from holdfast.lint.abstract_domain.truth import as_test, is_none, truth_value
from holdfast.lint.abstract_domain.values import (
    NO_CONSTANT,
    NONE_OBJECT,
    RANK_OR_SELECTED,
    ROUNDED_UP,
    UNIFORM,
    UNKNOWN,
    OpenDict,
    Taint,
    TaintKind,
    Value,
    combine_values,
    constant_value,
    is_rank_only,
    join_values,
    merge_content,
    merge_taint,
    persistent_taint,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    ALL_RANKS,
    BATCH,
    COUNT,
    LAUNCHER_RANK,
    MASK,
    PADDING,
    RANK_COMPARISONS,
    RANK_TEXT,
    TRIMMED,
    WHOLE_SIZE,
    FunctionObject,
    LibraryMethod,
    RankTest,
    TupleElements,
    as_text,
    dict_entries,
    operand_marks,
)
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.process_stamps import (
    ProcessStamp,
)
from holdfast.lint.abstract_state.shares import (
    grows_on_both_sides,
    is_share_length,
    multiples,
    rounds_up,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.divided_sums import record_division
from holdfast.lint.divergence.framework_loops import record_lone_yield
from holdfast.lint.divergence.group_numbers import combined_number, mark_compared_position
from holdfast.lint.divergence.operand_counts import product_per_rank
from holdfast.lint.divergence.orders import record_share_of_whole
from holdfast.lint.divergence.single_process import as_uniform, checks_multiple_processes
from holdfast.lint.interpreter.iteration import iterated_value
from holdfast.lint.interpreter.narrowing import apply_narrowing, narrow
from holdfast.lint.sources.modules import dotted_name

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
#: Queries of the global rank, not of the local rank or a rank within a group.
_RANK_QUERY = re.compile(r"(?:^|\.)get_rank\(\)$|['\"]RANK['\"]")
#: Names of statistics of a rank's own batch.
_LOCAL_COUNT_NAMES = re.compile(r"(?:^|[._])(?:kls?|pos|npos|positives|num_fg|valid)$")
_ORDER_COMPARISONS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)
_SELECTED_KINDS = frozenset({TaintKind.OWN})
_PROGRESS_BARS = frozenset({"tqdm", "trange", "track", "progress_bar"})


class ExpressionEvaluator:
    """Evaluates operators, conditions and other expressions."""

    def __init__(self, state: InterpreterState) -> None:
        self.state = state

    def _constant(self, _: Frame, node: ast.Constant) -> Value:
        return constant_value(node.value)

    def _wrapped_expression(
        self, frame: Frame, node: ast.Starred | ast.Await | ast.FormattedValue
    ) -> Value:
        return self.state.evaluate(frame, node.value)

    def _named_expression(self, frame: Frame, node: ast.NamedExpr) -> Value:
        value = self.state.evaluate(frame, node.value)
        frame.scope.names[node.target.id] = value
        return value

    def _lambda(self, frame: Frame, node: ast.Lambda) -> Value:
        return Value(
            objects=(
                FunctionObject(self.state.nested_function(frame, node, "<lambda>"), frame.scope),
            )
        )

    def _yield(self, frame: Frame, node: ast.Yield | ast.YieldFrom) -> Value:
        if frame.function is not None and frame.function.decorated_by("contextmanager"):
            frame.add_effect(Marker(YIELD_MARKER, frame.location(node)))
            record_lone_yield(self.state, frame, node)
            frame.yield_facts = frame.facts
        value = self.state.evaluate(frame, node.value)
        alike = grows_on_both_sides(frame, node)
        control = () if alike else persistent_taint(frame.own_control)
        if isinstance(node, ast.YieldFrom):
            over = iterated_value(self.state, frame, node.value, value)
            length = merge_taint(over.length, control)
            order = merge_taint(over.order, frame.loop_order)
            frame.yields.append(replace(over, items=None, length=length, order=order))
        else:
            objects = tuple(obj for obj in value.objects if not isinstance(obj, TupleElements))
            if control and is_rank_only(control):  # each rank yields its share of the data
                objects = (BATCH, *objects)
            order = frame.loop_order
            frame.yields.append(replace(value, length=control, order=order, objects=objects))
        return UNKNOWN

    # ---- operators

    def _binary(self, frame: Frame, node: ast.BinOp) -> Value:
        left, right = self.state.evaluate(frame, node.left), self.state.evaluate(frame, node.right)
        objects = (*left.objects, *right.objects)
        if isinstance(node.op, ast.Sub) and left.agreed and not right.agreed and right.content:
            return replace(combine_values(left, right), agreed=True, objects=(PADDING,))
        if isinstance(node.op, ast.Div):
            record_division(self.state, frame, node, left, right)
        if is_share_length(frame, node, left, right):
            return UNKNOWN
        if isinstance(node.op, ast.Div) and WHOLE_SIZE in right.objects:
            record_share_of_whole(self.state, frame, node, left)
        masks = (MASK,) if MASK in objects else ()
        # ``order + order[: total - len(order)]``
        padded = (TRIMMED,) if isinstance(node.op, ast.Add) and TRIMMED in right.objects else ()
        number = combined_number(node.op, left, right)
        products = multiples(self.state, node) if number is None else ()
        value = replace(
            combine_values(left, right),
            agreed=left.agreed or right.agreed,
            objects=(
                *operand_marks((left, right)),
                *masks,
                *padded,
                *products,
                *product_per_rank(node, left, right),
                *((number,) if number is not None else ()),
                *_text_stamps(objects),
            ),
        )
        if rounds_up(node) and not value.ragged:
            value = replace(value, ragged=ROUNDED_UP)
        # a name that contains the rank
        if isinstance(left.const, str) or isinstance(right.const, str):
            return as_text(value, value.objects)
        return value

    def _unary(self, frame: Frame, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            answer = self.state.evaluate_test(frame, node.operand)
            known = truth_value(answer)
            if known is not None:
                return constant_value(not known)
            return Value(answer.content, known=answer.known, agreed=answer.agreed)
        value = self.state.evaluate(frame, node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value.const, (int, float)):
            return constant_value(-value.const)
        return replace(combine_values(value), objects=value.objects)

    def _boolean(self, frame: Frame, node: ast.BoolOp) -> Value:
        values: list[Value] = []
        control: Taint = ()
        for at, operand in enumerate(node.values):
            if at == 0:
                value = self.state.evaluate(frame, operand)
            else:
                with frame.collect_effects(control) as inner:
                    value = self.state.evaluate(frame, operand)
                if inner:
                    test, text = combine_values(*map(as_test, values)), self.state.unparse(node)
                    frame.add_effect(
                        Branch(
                            frame.location(operand),
                            text,
                            test.content,
                            test.known,
                            tuple(inner),
                            (),
                        )
                    )
            values.append(value)
            value = values[-1] = self.state.as_presence(operand, value)
            control = merge_taint(control, as_test(value).content)
            truth = truth_value(value)
            if truth is not None and truth is isinstance(node.op, ast.Or):
                if at == 0:
                    return value
                if isinstance(value.const, bool):
                    return constant_value(truth)
                break  # ``found or 3``: the operands so far, or this one
        open_ones = [value for value in values if truth_value(value) is None]
        if not open_ones:
            return values[-1]
        value = replace(
            combine_values(*map(as_test, open_ones)), objects=join_values(values).objects
        )
        if isinstance(node.op, ast.Or) and values[-1].const is None:  # ``list(waiting) or None``
            return replace(
                value,
                absent=merge_taint(value.absent, *(as_test(item).content for item in values[:-1])),
            )
        return value

    def _compare(self, frame: Frame, node: ast.Compare) -> Value:
        values = [
            self.state.evaluate(frame, comparator) for comparator in (node.left, *node.comparators)
        ]
        operator_node = node.ops[0]
        known = _known_answer(values[0], operator_node, values[1]) if len(values) == 2 else None
        if known is not None:
            return known
        if isinstance(operator_node, (ast.In, ast.NotIn)):
            return _membership(operator_node, *values[:2])
        content = merge_content(values)
        if content and len(values) == 2 and isinstance(values[1].const, str):
            # tests part of the value
            tests_affix = not values[1].const or bool(values[0].objects_of(LibraryMethod))
            dropped_kinds = (
                RANK_OR_SELECTED
                if RANK_TEXT in values[0].objects
                else _SELECTED_KINDS
                if tests_affix
                else ()
            )
            content = without_kinds(content, dropped_kinds)
        clock: Taint = ()
        if len(values) == 2:
            mark_compared_position(frame.scope.names, node, values)
        if isinstance(operator_node, (ast.Eq, ast.NotEq)):  # ``if seconds == 0``: never in practice
            content = without_kinds(content, {TaintKind.TIME})
        else:
            clock = tuple(
                replace(source, kind=TaintKind.CLOCK)
                for source in content
                if source.kind is TaintKind.TIME
            )
        objects = _mask_objects(operator_node, values[0], content) or (
            _rank_tests(operator_node, *values) if len(values) == 2 else ()
        )
        if not content and _is_local_count(node, values[0]):
            content = self.state.taint_source(frame, TaintKind.NAMED, node)
        if not content and _is_batch_element(node, values[0]):
            content = self.state.taint_source(frame, TaintKind.DATA, node)
        if COUNT in values[0].objects and _compares_with_empty(operator_node, values[1].const):
            content = merge_taint(content, self.state.taint_source(frame, TaintKind.DATA, node))
        # the clock decides, whatever the limit
        agreed = any(value.agreed for value in values) and all(
            value.agreed or value.const is not NO_CONSTANT for value in values
        )
        return Value(
            clock or content,
            known=all(value.known for value in values),
            objects=objects,
            agreed=agreed,
        )

    def _conditional(self, frame: Frame, node: ast.IfExp) -> Value:
        test = self.state.evaluate_test(frame, node.test)
        known = truth_value(test)
        if known is not None:
            return self.state.evaluate(frame, node.body if known else node.orelse)
        narrowing = narrow(self.state, frame, node.test)
        with (
            frame.collect_effects(test.content) as yes,
            apply_narrowing(frame, narrowing, passed=True),
        ):
            yes_value = self.state.evaluate(frame, node.body)
        with (
            frame.collect_effects(test.content) as no,
            apply_narrowing(frame, narrowing, passed=False),
        ):
            no_value = self.state.evaluate(frame, node.orelse)
        if yes or no:
            frame.add_effect(
                Branch(
                    frame.location(node),
                    self.state.unparse(node.test),
                    test.content,
                    test.known,
                    tuple(yes),
                    tuple(no),
                )
            )
        if test.content and self._differs_by_progress_bar(node.body, node.orelse):
            return no_value
        multiple = None if test.content else checks_multiple_processes(node.test)
        if multiple is not None:
            yes_value, no_value = (
                (yes_value, as_uniform(no_value, yes_value))
                if multiple
                else (as_uniform(yes_value, no_value), no_value)
            )
        return join_values((yes_value, no_value), test.content)

    def _differs_by_progress_bar(self, wrapped: ast.expr, plain: ast.expr) -> bool:
        """Return True for ``tqdm(loader) if main else loader``: both sides iterate the same."""
        if not (
            isinstance(wrapped, ast.Call)
            and wrapped.args
            and dotted_name(wrapped.func).rpartition(".")[2] in _PROGRESS_BARS
        ):
            return False
        return self.state.unparse(wrapped.args[0]) == self.state.unparse(plain)

    @property
    def evaluators(self) -> dict[type[ast.expr], Callable[..., Value]]:
        """Return the method for each kind of expression."""
        return {
            ast.Constant: self._constant,
            ast.Starred: self._wrapped_expression,
            ast.Await: self._wrapped_expression,
            ast.FormattedValue: self._wrapped_expression,
            ast.NamedExpr: self._named_expression,
            ast.Lambda: self._lambda,
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.BoolOp: self._boolean,
            ast.Compare: self._compare,
            ast.IfExp: self._conditional,
        }


def _known_answer(value: Value, operator_node: ast.cmpop, other: Value) -> Value | None:
    """Return the result of a comparison with None, of constants, or for a launcher, if known."""
    if other.const is None and isinstance(operator_node, (ast.Is, ast.IsNot)):
        none = is_none(value)
        if none is not None and not any(map(_is_unknown_attribute, value.objects)):
            return constant_value(none is isinstance(operator_node, ast.Is))
        if LAUNCHER_RANK not in value.objects:
            return Value(value.absent, known=value.known)
    compare = _COMPARE.get(type(operator_node))
    if compare is not None and value.const is not NO_CONSTANT and other.const is not NO_CONSTANT:
        try:
            return constant_value(bool(compare(value.const, other.const)))
        except TypeError:
            return UNKNOWN
    return UNIFORM if _tests_launcher(value, operator_node, other.const) else None


def _text_stamps(objects: tuple[Any, ...]) -> tuple[ProcessStamp, ...]:
    """Return the stamp of a text or path that is part of another."""
    return tuple(obj for obj in objects if isinstance(obj, ProcessStamp) and obj.is_text)[:1]


def _is_unknown_attribute(obj: object) -> bool:
    """Return True for an attribute of an unknown object: a method, or anything else."""
    return isinstance(obj, LibraryMethod) and obj.owner is None


def _membership(operator_node: ast.In | ast.NotIn, element: Value, container: Value) -> Value:
    """Return the value of a membership test."""
    if ALL_RANKS in container.objects and LAUNCHER_RANK in element.objects:
        return constant_value(isinstance(operator_node, ast.In))
    named = dict_entries(container)
    if named is not None and isinstance(element.const, str):  # the test is about keys, not values
        value = named.get(element.const)
        return Value(
            value.absent if value is not None and NONE_OBJECT in value.objects else (),
            known=container.known,
        )
    consts = [item.const for item in container.items or ()]
    if consts and NO_CONSTANT not in (element.const, *consts):
        return constant_value((element.const in consts) is isinstance(operator_node, ast.In))
    values = () if container.objects_of(OpenDict) else container.content
    content = merge_taint(element.content, values, container.length)
    return Value(
        content,
        known=element.known and container.known,
        objects=_rank_tests(operator_node, element, container),
    )


def _rank_tests(operator_node: ast.cmpop, value: Value, other: Value) -> tuple[RankTest, ...]:
    """Return the ranks that pass a comparison of the rank with numbers."""
    name = type(operator_node).__name__
    if (
        name not in RANK_COMPARISONS
        or value.objects != (LAUNCHER_RANK,)
        or not all(_RANK_QUERY.search(source.text) for source in value.content)
    ):
        return ()
    is_membership = name in ("In", "NotIn")
    if is_membership != (other.items is not None):
        return ()
    numbers = tuple(item.const for item in other.items or (other,))
    if all(type(number) is int for number in numbers):
        return (RankTest(name, numbers if is_membership else numbers[0]),)
    return ()


def _mask_objects(operator_node: ast.cmpop, value: Value, content: Taint) -> tuple[Any, ...]:
    """Return mask objects for an elementwise comparison of data."""
    if isinstance(operator_node, (ast.In, ast.NotIn, ast.Is, ast.IsNot)):
        return ()
    if BATCH in value.objects:
        return (BATCH, MASK)
    return (MASK,) if any(source.kind is TaintKind.DATA for source in content) else ()


def _is_local_count(node: ast.Compare, left: Value) -> bool:
    """Return True for a statistic of a rank's own batch, by its name: ``approx_kl > limit``."""
    if left.known or left.agreed or not isinstance(node.left, (ast.Name, ast.Attribute)):
        return False
    return isinstance(node.ops[0], _ORDER_COMPARISONS) and bool(
        _LOCAL_COUNT_NAMES.search(dotted_name(node.left))
    )


def _is_batch_element(node: ast.Compare, left: Value) -> bool:
    """Return True for one element, or the mean, of a batch compared with a number: ``y[0] > 2``."""
    if BATCH not in left.objects or left.agreed:
        return False
    operand = node.left.left if isinstance(node.left, ast.BinOp) else node.left
    match operand, node.comparators:
        case (
            ast.Subscript(value=ast.Name(), slice=ast.Constant(value=int())),
            [ast.Constant(value=int() | float())],
        ):
            return True
        case (
            ast.Call(func=ast.Attribute(attr="mean" | "std" | "norm"), args=[]),
            [ast.Constant(value=int() | float())],
        ):
            return True
        case _:
            return False


def _compares_with_empty(operator_node: ast.cmpop, other: object) -> bool:
    """Return True for a comparison that asks whether a part of the batch is empty."""
    if other == 1:
        return isinstance(operator_node, (ast.Lt, ast.GtE))
    return other == 0 and isinstance(operator_node, (ast.Eq, ast.NotEq, ast.Gt, ast.LtE))


def _tests_launcher(value: Value, operator_node: ast.cmpop, other: object) -> bool:
    """Return True for a test whether a launcher started the program: uniform over ranks."""
    if LAUNCHER_RANK not in value.objects:
        return False
    if other is None or (isinstance(other, int) and other < 0) or other in ("", "-1"):
        return True
    return other == 0 and isinstance(operator_node, (ast.GtE, ast.Lt))
