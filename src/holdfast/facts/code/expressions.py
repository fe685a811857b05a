"""What an expression gives, on all ranks taken together; what it enters on the way goes into the frame."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any, ClassVar

from msgspec.structs import replace

from holdfast.facts.code.alone import alike, several
from holdfast.facts.code.collectives import ALL_RANKS
from holdfast.facts.code.displays import Displays
from holdfast.facts.code.effects import YIELD, Fork, Note
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.modules import dotted
from holdfast.facts.code.narrowing import narrowed, taken_for
from holdfast.facts.code.things import (
    BATCH,
    COUNT,
    LAUNCHED,
    MASK,
    NAMED,
    PADDING,
    TESTS,
    Func,
    Made,
    Partial,
    Picks,
    Rows,
    given_in,
    told,
)
from holdfast.facts.code.values import (
    MISSING,
    NONE,
    SAME,
    UNKNOWN,
    Kind,
    Sources,
    Value,
    asked,
    constant,
    derived,
    is_none,
    join,
    lasting,
    merged,
    truth,
)

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
#: How the rank in the job is asked for; there are others, of the node, of a group.
_RANK = re.compile(r"(?:^|\.)get_rank\(\)$|['\"]RANK['\"]")
#: Numbers of what a rank has of its own batch, and comparisons of numbers.
_OWN_COUNTS = re.compile(r"(?:^|[._])(?:kls?|pos|npos|positives|num_fg|valid)$")
_ORDERS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq)
_RANKS = frozenset({Kind.RANK, Kind.LOCAL_RANK, Kind.OWN})
_OWN = frozenset({Kind.OWN})
_KEPT = (BATCH, NAMED)
_BARS = frozenset({"tqdm", "trange", "track", "progress_bar"})


class Expressions(Displays):
    """Part of the interpreter: one method for each kind of expression."""

    def evaluate(self, frame: Frame, node: ast.expr | None) -> Value:
        """What ``node`` gives."""
        if node is None:
            return SAME
        method = self.by_node.get(type(node))
        return UNKNOWN if method is None else method(self, frame, node)

    def tested(self, frame: Frame, node: ast.expr) -> Value:
        """What ``node`` gives as a test: there is something, and more of it than nothing."""
        value = asked(self.evaluate(frame, node))
        if COUNT not in value.things:
            return value
        return replace(value, content=merged(value.content, self.source(frame, Kind.DATA, node)), things=())

    def _constant(self, _: Frame, node: ast.Constant) -> Value:
        return constant(node.value)

    def _call(self, frame: Frame, node: ast.Call) -> Value:
        return self.call_node(frame, node)

    def _inner(self, frame: Frame, node: ast.Starred | ast.Await | ast.FormattedValue) -> Value:
        return self.evaluate(frame, node.value)

    def _assigned(self, frame: Frame, node: ast.NamedExpr) -> Value:
        value = self.evaluate(frame, node.value)
        frame.scope.names[node.target.id] = value
        return value

    def _lambda(self, frame: Frame, node: ast.Lambda) -> Value:
        return Value(things=(Func(self.nested(frame, node, "<lambda>"), frame.scope),))

    def _yield(self, frame: Frame, node: ast.Yield | ast.YieldFrom) -> Value:
        if frame.function is not None and frame.function.decorated_by("contextmanager"):
            frame.note(Note(YIELD, frame.place(node)))
        value = self.evaluate(frame, node.value)
        control = lasting(frame.own_control)
        if isinstance(node, ast.YieldFrom):
            over = self.rounds(frame, node.value, value)
            frame.yields.append(replace(over, items=None, length=merged(over.length, control)))
        else:
            things = tuple(each for each in value.things if not isinstance(each, Rows))
            frame.yields.append(replace(value, length=control, things=things))
        return UNKNOWN

    # ---- operators

    def _binary(self, frame: Frame, node: ast.BinOp) -> Value:
        one, other = self.evaluate(frame, node.left), self.evaluate(frame, node.right)
        both = (*one.things, *other.things)
        outputs = tuple(
            each for each in both if isinstance(each, Made) and (each.name.startswith("output:") or each in _KEPT)
        )
        if isinstance(node.op, ast.Sub) and one.agreed and not other.agreed and other.content:
            return replace(derived(one, other), agreed=True, things=(PADDING,))
        masks = (MASK,) if MASK in both else ()
        value = replace(derived(one, other), agreed=one.agreed or other.agreed, things=(*outputs[:1], *masks))
        if isinstance(one.const, str) or isinstance(other.const, str):  # a name with the rank in it tells little else
            return told(value, value.things)
        return value

    def _unary(self, frame: Frame, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            answer = self.tested(frame, node.operand)
            known = truth(answer)
            return (
                constant(not known)
                if known is not None
                else Value(answer.content, known=answer.known, agreed=answer.agreed)
            )
        value = self.evaluate(frame, node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value.const, (int, float)):
            return constant(-value.const)
        return replace(derived(value), things=value.things)

    def _boolean(self, frame: Frame, node: ast.BoolOp) -> Value:
        values: list[Value] = []
        control: Sources = ()
        for at, operand in enumerate(node.values):
            if at == 0:
                value = self.evaluate(frame, operand)
            else:
                with frame.apart(control) as inner:
                    value = self.evaluate(frame, operand)
                if inner:
                    test, text = derived(*map(asked, values)), self.text(node)
                    frame.note(Fork(frame.place(operand), text, test.content, test.known, tuple(inner), ()))
            values.append(value)
            control = merged(control, asked(value).content)
            known = truth(value)
            if known is not None and known is isinstance(node.op, ast.Or):
                return value if at == 0 else constant(known)
        open_ones = [value for value in values if truth(value) is None]
        if not open_ones:
            return values[-1]
        value = replace(derived(*map(asked, open_ones)), things=join(values).things)
        if isinstance(node.op, ast.Or) and values[-1].const is None:  # ``list(waiting) or None``
            return replace(value, absent=merged(value.absent, *(asked(each).content for each in values[:-1])))
        return value

    def _compare(self, frame: Frame, node: ast.Compare) -> Value:
        values = [self.evaluate(frame, each) for each in (node.left, *node.comparators)]
        how = node.ops[0]
        if len(values) == 2 and values[1].const is None and isinstance(how, (ast.Is, ast.IsNot)):
            none = is_none(values[0])
            if none is not None or LAUNCHED not in values[0].things:
                there = Value(values[0].absent, known=values[0].known)
                return there if none is None else constant(none is isinstance(how, ast.Is))
        compare = _COMPARE.get(type(how))
        if compare is not None and len(values) == 2 and all(value.const is not MISSING for value in values):
            try:
                return constant(bool(compare(values[0].const, values[1].const)))
            except TypeError:
                return UNKNOWN
        if len(values) == 2 and _of_launcher(values[0], how, values[1].const):
            return SAME
        if isinstance(how, (ast.In, ast.NotIn)):
            return _contained(how, *values[:2])
        content = merged(*(each.content for each in values))
        if content and len(values) == 2 and isinstance(values[1].const, str):
            part = not values[1].const or any(isinstance(each, Partial) for each in values[0].things)  # of what it has
            said = _RANKS if NAMED in values[0].things else _OWN if part else ()
            content = tuple(source for source in content if source.kind not in said)
        clock = tuple(replace(each, kind=Kind.CLOCK) for each in content if each.kind is Kind.TIME)
        things = _masking(how, values[0], content) or (_picked(how, *values) if len(values) == 2 else ())
        if not content and _is_own_count(node, values[0]):
            content = self.source(frame, Kind.NAMED, node)
        if COUNT in values[0].things and _asks_for_none(how, values[1].const):
            content = merged(content, self.source(frame, Kind.DATA, node))
        # the clock decides, whatever the limit is
        agreed = any(each.agreed for each in values) and all(
            each.agreed or each.const is not MISSING for each in values
        )
        return Value(clock or content, known=all(each.known for each in values), things=things, agreed=agreed)

    def _choice(self, frame: Frame, node: ast.IfExp) -> Value:
        test = self.tested(frame, node.test)
        known = truth(test)
        if known is not None:
            return self.evaluate(frame, node.body if known else node.orelse)
        asked_of = narrowed(self, frame, node.test)
        with frame.apart(test.content) as yes, taken_for(frame, asked_of, passed=True):
            one = self.evaluate(frame, node.body)
        with frame.apart(test.content) as no, taken_for(frame, asked_of, passed=False):
            other = self.evaluate(frame, node.orelse)
        if yes or no:
            frame.note(Fork(frame.place(node), self.text(node.test), test.content, test.known, tuple(yes), tuple(no)))
        if test.content and self._wraps(node.body, node.orelse):
            return other
        many = None if test.content else several(node.test)
        if many is not None:
            one, other = (one, alike(other, one)) if many else (alike(one, other), other)
        return join((one, other), test.content)

    def _wraps(self, one: ast.expr, other: ast.expr) -> bool:
        """``tqdm(enumerate(loader)) if main else enumerate(loader)``: with a bar or without, it is the same."""
        if not (isinstance(one, ast.Call) and one.args and dotted(one.func).rpartition(".")[2] in _BARS):
            return False
        return self.text(one.args[0]) == self.text(other)

    by_node: ClassVar[dict[type[ast.expr], Callable[..., Value]]] = Displays.by_node | {
        ast.Constant: _constant,
        ast.Call: _call,
        ast.Starred: _inner,
        ast.Await: _inner,
        ast.FormattedValue: _inner,
        ast.NamedExpr: _assigned,
        ast.Lambda: _lambda,
        ast.Yield: _yield,
        ast.YieldFrom: _yield,
        ast.BinOp: _binary,
        ast.UnaryOp: _unary,
        ast.BoolOp: _boolean,
        ast.Compare: _compare,
        ast.IfExp: _choice,
    }


def _contained(how: ast.In | ast.NotIn, one: Value, many: Value) -> Value:
    """Whether one thing is in another."""
    if ALL_RANKS in many.things and LAUNCHED in one.things:
        return constant(isinstance(how, ast.In))
    named = given_in(many)
    if named is not None and isinstance(one.const, str):  # of a dict the keys are asked for, and not what they hold
        value = named.get(one.const)
        return Value(value.absent if value is not None and NONE in value.things else (), known=many.known)
    content = merged(one.content, many.content, many.length)
    return Value(content, known=one.known and many.known, things=_picked(how, one, many))


def _picked(how: ast.cmpop, one: Value, other: Value) -> tuple[Picks, ...]:
    """The ranks that pass a comparison of the rank with numbers."""
    name = type(how).__name__
    if name not in TESTS or one.things != (LAUNCHED,) or not all(_RANK.search(source.text) for source in one.content):
        return ()
    several = name in ("In", "NotIn")
    if several != (other.items is not None):
        return ()
    numbers = tuple(each.const for each in other.items or (other,))
    return (Picks(name, numbers if several else numbers[0]),) if all(type(each) is int for each in numbers) else ()


def _masking(how: ast.cmpop, one: Value, content: Sources) -> tuple[Any, ...]:
    """A comparison of data says of each element which it is."""
    if isinstance(how, (ast.In, ast.NotIn, ast.Is, ast.IsNot)):
        return ()
    if BATCH in one.things:
        return (BATCH, MASK)
    return (MASK,) if any(each.kind is Kind.DATA for each in content) else ()


def _is_own_count(node: ast.Compare, left: Value) -> bool:
    """By its name a number of what a rank has of its own batch, of which nothing is known: ``approx_kl > limit``."""
    if left.known or left.agreed or not isinstance(node.left, (ast.Name, ast.Attribute)):
        return False
    return isinstance(node.ops[0], _ORDERS) and bool(_OWN_COUNTS.search(dotted(node.left)))


def _asks_for_none(how: ast.cmpop, other: object) -> bool:
    """Are there any? Who asks that of a part of the batch knows that there may be none."""
    if other == 1:
        return isinstance(how, (ast.Lt, ast.GtE))
    return other == 0 and isinstance(how, (ast.Eq, ast.NotEq, ast.Gt, ast.LtE))


def _of_launcher(value: Value, how: ast.cmpop, other: object) -> bool:
    """Was the program started by a launcher at all? That is so for all ranks, or for none."""
    if LAUNCHED not in value.things:
        return False
    if other is None or (isinstance(other, int) and other < 0) or other in ("", "-1"):
        return True
    return other == 0 and isinstance(how, (ast.GtE, ast.Lt))
