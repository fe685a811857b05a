"""Statements: which ways they open, and where these end."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from holdfast.facts.code.alarms import ON, within
from holdfast.facts.code.alone import alike, among_others, several
from holdfast.facts.code.arguments import Arguments, given_by
from holdfast.facts.code.assigning import is_kept, is_memo, is_plain, make_up, missing
from holdfast.facts.code.definitions import Definitions
from holdfast.facts.code.effects import YIELD, Called, Exit, Fork, Loop, Note, Try, Way, ends
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.library.classes import WHOLE
from holdfast.facts.code.modules import last_name
from holdfast.facts.code.narrowing import narrowed, taken_for
from holdfast.facts.code.sides import after_handler, after_itself, merge_sides, put_back, without_none
from holdfast.facts.code.things import Func, Made, Obj, Picks, Ranks, outputs
from holdfast.facts.code.values import (
    UNKNOWN,
    Kind,
    Value,
    by_rank,
    derived,
    join,
    merged,
    tainted,
    truth,
)

_LONGEST_TEXT = 200
#: Loops within so many others are run once: each level doubles the work.
_TWICE = 6
_JOINS = frozenset({"join", "join_uneven_inputs"})


class Flow(Definitions):
    """Part of the interpreter: one method for each kind of statement."""

    def run(self, frame: Frame, body: Sequence[ast.stmt]) -> None:
        """Run a block until it ends or leaves."""
        kept, left = frame.control, frame.left
        for statement in body:
            if frame.ended:
                break
            method = self.by_statement.get(type(statement))
            if method is None:
                continue
            try:
                method(self, frame, statement)
            except RecursionError:
                continue  # an expression that is thousands of operators deep: the statement is passed over
        frame.control, frame.left = kept, left

    def _expression(self, frame: Frame, node: ast.Expr) -> None:
        self.evaluate(frame, node.value)

    def _assert(self, frame: Frame, node: ast.Assert) -> None:
        self.evaluate(frame, node.test)

    def _global(self, frame: Frame, node: ast.Global) -> None:
        frame.globals.update(node.names)

    def _assignment(self, frame: Frame, node: ast.Assign) -> None:
        value = self.evaluate(frame, node.value)
        frame.plain = is_plain(node.value)
        for target in node.targets:
            self.assign(frame, target, value)
            if isinstance(target, ast.Name):
                frame.rebound.add(target.id)
            elif isinstance(target, ast.Attribute) and value.agreed and not value.content:
                self.settle(frame, target, node.value)

    def _annotated(self, frame: Frame, node: ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.evaluate(frame, node.value)
            frame.plain = is_plain(node.value)
            self.assign(frame, node.target, value)

    def _augmented(self, frame: Frame, node: ast.AugAssign) -> None:
        old, new = self.evaluate(frame, node.target), self.evaluate(frame, node.value)
        self.updated(frame, node, old, new)
        grown = isinstance(node.op, ast.Add) and old.items is not None
        value = replace(derived(old, new), things=old.things if grown else outputs((old, new)), agreed=old.agreed)
        frame.plain = True
        self.assign(frame, node.target, value)

    # ---- forks

    def _if(self, frame: Frame, node: ast.If) -> None:
        test = self.tested(frame, node.test)
        known = truth(test)
        lazy, absent = frame.lazy, missing(node.test)
        if known is not None:
            frame.lazy = (*lazy, *absent) if known else lazy
            self.run(frame, node.body if known else node.orelse)
            frame.lazy = lazy
            return
        if test.content and by_rank(test.content) and (is_memo(node, absent) if absent else is_kept(node)):
            test = replace(test, content=())  # each has its own key, and asks as often as the others
        names = frame.scope.names
        before = dict(names)
        differs = () if self._asks_for_group(frame, node.test) else test.content
        many = None if differs else several(node.test)
        frame.lazy = (*lazy, *absent)
        asked_of = narrowed(self, frame, node.test)
        with frame.apart(differs) as yes, taken_for(frame, asked_of, passed=True):
            self._side(frame, node.body, alone=many is False)
            yes_ended = frame.ended
        frame.lazy = lazy
        after_yes = dict(names)
        put_back(names, before)
        with frame.apart(differs) as no, taken_for(frame, asked_of, passed=False):
            self._side(frame, node.orelse, alone=many is True)
            no_ended = frame.ended
        if no_ended and not yes_ended:
            put_back(names, after_yes)
        elif not yes_ended:
            merge_sides(names, after_yes, differs, many=many, perhaps=not differs and among_others(node.test))
            make_up(names, absent, before, after_yes)
        frame.ended = yes_ended and no_ended
        if many is not None and (yes_ended if many else no_ended):
            names.update((name, alike(value)) for name, value in names.items())  # who goes on here is alone
        if yes or no:
            text = f"if {self.text(node.test)}"[:_LONGEST_TEXT]
            picks = next((each for each in test.things if isinstance(each, Picks)), None)
            parts = frame.parts(test.content), test.known, tuple(yes), tuple(no)
            frame.note(Fork(frame.place(node), text, *parts, picks=picks, agreed=test.agreed))
        left = ends(yes if yes_ended else no)
        if (yes_ended != no_ended) and differs and (left is None or left.how != "raise"):  # who raises has no value
            frame.control, frame.left = merged(frame.control, differs), merged(frame.left, differs)
        if yes_ended and not no_ended:
            without_none(names, node.test)
            if asked_of is not None:
                names[asked_of.name] = asked_of.no

    def _side(self, frame: Frame, body: Sequence[ast.stmt], *, alone: bool) -> None:
        """One side of a fork; ``alone``: only a process comes here that is the only one."""
        before = len(frame.returns)
        frame.alone += alone
        self.run(frame, body)
        frame.alone -= alone
        if alone:
            frame.returns[before:] = map(alike, frame.returns[before:])

    def _asks_for_group(self, frame: Frame, test: ast.expr) -> bool:
        """Whether a rank has a group: as a rule every rank is in one of its kind, and what follows is then alike."""
        node = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            node = node.left
        return isinstance(node, ast.Name) and any(
            isinstance(thing, Ranks) for thing in self.evaluate(frame, node).things
        )

    def _match(self, frame: Frame, node: ast.Match) -> None:
        subject = self.evaluate(frame, node.subject)
        ways: list[Way] = []
        for case in node.cases:
            with frame.apart(subject.content) as inner:
                self.run(frame, case.body)
            ways.append(tuple(inner))
        text = f"match {self.text(node.subject)}"
        last = node.cases[-1]
        for_all = last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        other: Way = ways.pop() if for_all else ()
        for way in reversed(ways):  # each case is a test, and what follows it the other side
            if way or other:
                other = (Fork(frame.place(node), text, subject.content, subject.known, way, other),)
        frame.effects.extend(other)

    # ---- loops: run twice, for what the first round leaves to the second

    def _for(self, frame: Frame, node: ast.For | ast.AsyncFor) -> None:
        over = self.rounds(frame, node.iter, self.evaluate(frame, node.iter))
        if isinstance(node.target, ast.Name):
            frame.rounds.add(node.target.id)
        self._iterated(frame, node, over)
        before = dict(frame.scope.names)
        frame.looped += 1
        for last in (False, True) if frame.looped <= _TWICE else (True,):
            with frame.apart(over.length) as inner:
                frame.plain = False
                self.each(frame, node.target, node.iter, over)
                self.run(frame, node.body)
            if not last:
                after_itself(frame.scope.names, before)
        frame.looped -= 1
        with frame.apart() as after:
            self.run(frame, node.orelse)
        if inner or after:
            text = f"for {self.text(node.target)} in {self.text(node.iter)}"[:_LONGEST_TEXT]
            rest = tuple(inner), tuple(after), over.known, frame.joined > 0
            frame.note(Loop(frame.place(node), text, over.length, over.order, *rest))

    def _iterated(self, frame: Frame, node: ast.For | ast.AsyncFor, over: Value) -> None:
        for thing in over.things:
            if isinstance(thing, Made) and thing.name == "loader" and frame.control and by_rank(frame.control):
                frame.note(Note("work", frame.place(node), "a pass over a loader"))
            sampler = thing.holds if isinstance(thing, Made) and thing.name == "loader" else None
            if sampler is not None and any(
                isinstance(each, Made) and each.name == "sampler" for each in sampler.things
            ):
                frame.note(Note("shuffled", frame.place(node)))
            if sampler is not None and WHOLE in sampler.things and not frame.control:
                frame.note(Note("whole", frame.place(node)))

    def _while(self, frame: Frame, node: ast.While) -> None:
        before = dict(frame.scope.names)
        frame.looped += 1
        for last in (False, True) if frame.looped <= _TWICE else (True,):
            with frame.apart() as before_each:
                test = self.tested(frame, node.test)
            with frame.apart(test.content) as inner:
                self.run(frame, node.body)
            if not last:
                after_itself(frame.scope.names, before, test.content)
        frame.looped -= 1
        inner[:0] = before_each
        if inner:
            text = f"while {self.text(node.test)}"[:_LONGEST_TEXT]
            joined = frame.joined > 0
            frame.note(Loop(frame.place(node), text, test.content, (), tuple(inner), known=test.known, joined=joined))
        self.run(frame, node.orelse)

    # ---- leaving

    def _return(self, frame: Frame, node: ast.Return) -> None:
        value = self.evaluate(frame, node.value)
        self.returned(frame, node, value)
        frame.given.append(value)
        frame.returns.append(tainted(value, frame.own_control))
        _leave(frame, node, "return")

    def _break(self, frame: Frame, node: ast.Break) -> None:
        _leave(frame, node, "break")

    def _continue(self, frame: Frame, node: ast.Continue) -> None:
        _leave(frame, node, "continue")

    def _raise(self, frame: Frame, node: ast.Raise) -> None:
        self.evaluate(frame, node.exc)
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        _leave(frame, node, "raise", last_name(raised))

    # ---- blocks

    def _with(self, frame: Frame, node: ast.With | ast.AsyncWith) -> None:
        joined = 0
        limits: list[Way] = []
        leaving: list[tuple[ast.expr, Func]] = []
        for item in node.items:
            value = self.evaluate(frame, item.context_expr)
            limits += _limit(frame)
            value, left = self._entered(frame, item.context_expr, value)
            leaving += left
            called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
            if (isinstance(called, ast.Attribute) and called.attr in _JOINS) or last_name(called) == "Join":
                joined += 1
            if item.optional_vars is not None:
                self.assign(frame, item.optional_vars, value)
        frame.joined += joined
        with frame.apart() as inner:
            self.run(frame, node.body)
            ended = frame.ended
        block = tuple(inner)
        for way in reversed(limits):
            block = within(way, block)
        frame.effects.extend(block)
        frame.joined -= joined
        for expression, method in reversed(leaving):
            self.invoke(frame, expression, method, given_by(*[UNKNOWN] * 3))
        frame.ended = ended

    def _entered(self, frame: Frame, node: ast.expr, value: Value) -> tuple[Value, list[tuple[ast.expr, Func]]]:
        """A class of the program is entered: what that gives, and what it does when it is left."""
        leaving, given = [], []
        for thing in value.things:
            if isinstance(thing, Obj):
                enter, leave = self.names.method(thing.cls, "__enter__"), self.names.method(thing.cls, "__exit__")
                if enter is not None and leave is not None:
                    given.append(self.invoke(frame, node, Func(enter, None, value), Arguments()))
                    leaving.append((node, Func(leave, None, value)))
        return (join(given) if given else value), leaving

    def _try(self, frame: Frame, node: ast.Try | ast.TryStar) -> None:
        names = frame.scope.names
        before = dict(names)
        with frame.apart() as body:
            self.run(frame, [*node.body, *node.orelse])
            ended = frame.ended
        after = dict(names)
        handlers = []
        open_ends = [] if ended else [after]
        for handler in node.handlers:
            put_back(names, {name: join((value, after.get(name, value))) for name, value in before.items()})
            caught = self.text(handler.type) if handler.type else ""
            fault = self.source(frame, Kind.FAULT, handler, f"except {caught}".strip())
            with frame.apart(fault) as inner:
                if handler.name:
                    names[handler.name] = Value(content=fault)
                self.run(frame, handler.body)
                if not frame.ended:
                    open_ends.append(
                        {name: after_handler(held, after.get(name), fault) for name, held in names.items()}
                    )
                ended = ended and frame.ended
            handlers.append((frame.place(handler), caught, tuple(inner)))
        names.clear()
        for each in open_ends or [after]:
            for name, value in each.items():
                names[name] = value if name not in names else join((names[name], value))
        with frame.apart() as last:
            self.run(frame, node.finalbody)
        if body or last or any(way for _, _, way in handlers):
            imports = all(isinstance(each, (ast.Import, ast.ImportFrom)) for each in node.body)
            frame.note(Try(frame.place(node), tuple(body), tuple(handlers), tuple(last), imports))
        frame.ended = ended and (bool(ends(body)) or not open_ends)

    by_statement: ClassVar[dict[type[ast.stmt], Callable[..., None]]] = Definitions.by_statement | {
        ast.Expr: _expression,
        ast.Assert: _assert,
        ast.Global: _global,
        ast.Assign: _assignment,
        ast.AnnAssign: _annotated,
        ast.AugAssign: _augmented,
        ast.If: _if,
        ast.Match: _match,
        ast.For: _for,
        ast.AsyncFor: _for,
        ast.While: _while,
        ast.Return: _return,
        ast.Break: _break,
        ast.Continue: _continue,
        ast.Raise: _raise,
        ast.With: _with,
        ast.AsyncWith: _with,
        ast.Try: _try,
        ast.TryStar: _try,
    }


def _limit(frame: Frame) -> list[Way]:
    """The way of a context manager that was just called, where it sets a limit of time: the block stands in it."""
    last = frame.effects[-1] if frame.effects else None
    if isinstance(last, Called) and {ON, YIELD} <= last.within.marks:
        frame.effects.pop()
        return [last.within.way]
    return []


def _leave(frame: Frame, node: ast.stmt, how: str, what: str = "") -> None:
    frame.note(Exit(how, frame.place(node), what))
    frame.ended = True
