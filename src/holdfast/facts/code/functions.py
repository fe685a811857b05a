"""Functions of the program: run once for each context that they are called in, and decorated."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from msgspec.structs import replace

from holdfast.facts.code import library
from holdfast.facts.code.arguments import Arguments, given_by
from holdfast.facts.code.effects import EMPTY, Called, Fork, body_of
from holdfast.facts.code.frames import Frame, Summary
from holdfast.facts.code.labour import note_own_work
from holdfast.facts.code.modules import Definition, Function, dotted, is_class_name
from holdfast.facts.code.signatures import signature
from holdfast.facts.code.state import State
from holdfast.facts.code.things import BATCH, Func, Rows, Scope, bound_to, listed
from holdfast.facts.code.values import (
    MISSING,
    SAME,
    UNKNOWN,
    Given,
    Kind,
    Source,
    Sources,
    Value,
    derived,
    join,
    kinds_of,
    lasting,
    merged,
    picked,
)

#: How deep calls are followed, how often into the same function, and in how many contexts one is run for itself.
_DEEPEST, _RECURSION, _CONTEXTS = 40, 2, 8
#: The contexts of a function that calls what it finds by a name that it is given.
_DISPATCHED = 32


class Functions(State):
    """Part of the interpreter: functions of the program."""

    def invoke(self, frame: Frame, node: ast.expr, thing: Func, given: Arguments) -> Value:
        """Run a function with these arguments; what it enters is entered here."""
        if thing.bound is not None:
            given = replace(given, positional=[thing.bound, *given.positional], nodes=[None, *given.nodes])
        function = thing.function
        note_own_work(frame, node, function)
        if id(function.node) not in self.functions and not self.relevance.matters(function):
            return unseen(function.name, *given.all)
        summary = self.summary(function, self._bind(function, given), thing.scope, frame)
        control = merged(thing.guard, self._remembered(frame, node, function, given))
        if summary.body.matters:
            body = summary.body
            if control:
                fork = Fork(frame.place(node), control[0].text, control, known=True, yes=body.way, no=())
                body = body_of((fork,))
                self.examine_way((fork,))
            through = _is_handed_on(frame, node, dispatches=self.dispatches(function))
            frame.note(Called(function.name, frame.place(node), body, through))
        self._changed(frame, function, given, summary)
        return summary.value if not control else join((summary.value, SAME), control)

    def _remembered(self, frame: Frame, node: ast.expr, function: Function, given: Arguments) -> Sources:
        """What is remembered by its arguments is done by those ranks alone whose own data were not seen before."""
        if not function.decorated_by("lru_cache", "cache"):
            return ()
        own = any(BATCH in each.things or Kind.DATA in kinds_of(each.content) for each in given.all)
        return (Source(Kind.DATA, frame.file, node.lineno, ast.unparse(node)),) if own else ()

    def _changed(self, frame: Frame, function: Function, given: Arguments, summary: Summary) -> None:
        """What a function changed in place is changed for its caller."""
        if not summary.mutated:
            return
        for at, name in enumerate(function.parameters):
            argument = given.node(at, name) if name in summary.mutated else None
            while isinstance(argument, ast.Subscript):
                argument = argument.value
            if isinstance(argument, (ast.Name, ast.Attribute)):
                self.store(frame, argument, summary.mutated[name])

    def _bind(self, function: Function, given: Arguments) -> dict[str, Value]:
        arguments = function.node.args
        names: dict[str, Value] = {}
        parameters = function.parameters
        without = len(parameters) - len(arguments.defaults)
        scope = Frame(None, Scope(function.module.variables, function.module))
        for at, name in enumerate(parameters):
            value = given.get(at, name)
            if value is None and at >= without:
                value = self.evaluate(scope, arguments.defaults[at - without])
                if given.rest is not None:
                    content = merged(value.content, given.rest.content)
                    value = Value(content=content, absent=given.rest.length, known=False)
            if value is None:
                value = given.rest if given.rest is not None else UNKNOWN
            names[name] = value
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            value = given.named.get(one.arg)
            if value is None:
                value = self.evaluate(scope, default) if default is not None else UNKNOWN
            names[one.arg] = value
        if arguments.vararg is not None:
            more = given.positional[len(parameters) :]
            names[arguments.vararg.arg] = (
                Value(items=tuple(more)) if given.rest is None else _several([*more, given.rest])
            )
        if arguments.kwarg is not None:
            left = {name: value for name, value in given.named.items() if name not in names}
            content = merged(*(each.content for each in left.values()))
            names[arguments.kwarg.arg] = Value(content, things=(Given(left),))
        return names

    def summary(self, function: Function, names: dict[str, Value], outer: Scope | None, caller: Frame) -> Summary:
        """What the function does with these arguments, remembered by all that matters of them."""
        context: tuple[Hashable, ...] = (
            id(function.node),
            outer,
            kinds_of(caller.control),
            kinds_of(caller.own_control),
            caller.joined > 0,
            caller.lazy,
        )
        key: Hashable = (*context, tuple(signature(value) for value in names.values()))
        found = self.memory.get(key)
        if found is not None:
            return found
        depth = self.active.get(function, 0)
        if depth >= _RECURSION or self.depth >= _DEEPEST:
            return Summary(UNKNOWN, EMPTY, {})
        if function.seen > (_DISPATCHED if self.dispatches(function) else _CONTEXTS):
            # from here on its constants are not told apart: what is asked by name is unknown
            names = {name: _blurred(value) for name, value in names.items()}
            key = (*context, tuple((kinds_of(value.content), value.const) for value in names.values()))
            found = self.memory.get(key)
            if found is not None:
                return found
        self.active[function] = depth + 1
        self.depth += 1
        try:
            with self.memory.run(key, function) as run:
                run.summary = summary = self._run_function(function, names, outer, caller)
        finally:
            self.active[function] = depth
            self.depth -= 1
        return summary

    def _run_function(self, function: Function, names: dict[str, Value], outer: Scope | None, caller: Frame) -> Summary:
        scope = Scope(dict(names), function.module, outer)
        frame = Frame(function, scope, caller.control, caller.control, caller.own_control)
        frame.lazy, frame.joined = caller.lazy, caller.joined
        if isinstance(function.node, ast.Lambda):
            value = self.evaluate(frame, function.node.body)
            return Summary(value, body_of(frame.effects), {})
        self.run(frame, function.node.body)
        body = body_of(frame.effects)
        self.examine(frame, body)
        if frame.yields:
            value = join(frame.yields)
            things = (Rows(value.items), *value.things) if value.items else value.things
            value = Value(value.content, () if frame.padded else value.length, known=value.known, things=things)
        else:
            value = _returned(frame)
        mutated = {name: frame.mutated[name] for name in names if name in frame.mutated}
        return Summary(value, body, mutated)

    def dispatches(self, function: Function) -> bool:
        """It calls methods by a name that it is given, or hands the name on."""
        found = self.dispatchers.get(function)
        if found is None:
            found = self.dispatchers[function] = any(
                isinstance(each, ast.Call) and isinstance(each.func, ast.Call) and dotted(each.func.func) == "getattr"
                for each in ast.walk(function.node)
            )
        return found

    def nested(self, frame: Frame, node: Definition, name: str) -> Function:
        """The function that a nested definition makes, the same each time."""
        found = self.functions.get(id(node))
        if found is None:
            found = self.functions[id(node)] = Function(name, node, frame.scope.module)
        return found

    # ---- decorators

    def decorated(self, function: Function, bound: Value | None) -> Value:
        """A function as its decorators leave it, bound to an instance."""
        found = self.decorations.get(function)
        if found is None:
            self.decorations[function] = Value(things=(Func(function),))  # for a decorator that leads back to it
            frame = Frame(None, Scope(function.module.variables, function.module))
            found = self.decorations[function] = self.decorate(frame, Func(function))
        if bound is None:
            return found
        return replace(found, things=tuple(bound_to(thing, bound) for thing in found.things))

    def decorate(self, frame: Frame, thing: Func) -> Value:
        """Apply the decorators, the innermost first."""
        value = Value(things=(thing,))
        for each in reversed(thing.function.decorators):
            value = self._apply(frame, each, value)
        return value

    def _apply(self, frame: Frame, decorator: ast.expr, value: Value) -> Value:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        found = self.evaluate(frame, called)
        if any(isinstance(each, Func) for each in found.things):
            if isinstance(decorator, ast.Call):
                found = self.evaluate(frame, decorator)
            made = self.call(frame, decorator, found, given_by(value))
            return made if any(isinstance(each, Func) for each in made.things) else value
        kind = library.GUARDS.get(dotted(called).rpartition(".")[2])
        if kind is None:
            return value
        guard = (Source(kind, frame.file, decorator.lineno, f"@{self.text(decorator)}"),)
        things = (replace(each, guard=guard) if isinstance(each, Func) else each for each in value.things)
        return replace(value, things=tuple(things))


def _returned(frame: Frame) -> Value:
    """What a function gives; the same, wherever it ends, whoever decides that: one rank its loader with a bar."""
    if not frame.returns:
        return SAME
    first = frame.given[0]
    if frame.ended and len(frame.given) > 1 and first.things and all(each is first for each in frame.given):
        return first
    value = join(frame.returns)
    return join((value, SAME), frame.own_control) if not frame.ended and frame.own_control else value


def _several(values: list[Value]) -> Value:
    """Arguments of which it is not known how many there are."""
    value = join(values)
    return replace(value, things=listed(value.things))


def _blurred(value: Value) -> Value:
    """A value without what tells too many contexts apart; switches are left: there are few of them."""
    const = value.const if value.const is None or isinstance(value.const, bool) else MISSING
    things = tuple(each for each in value.things if not isinstance(each, Given))
    return replace(value, const=const, items=None, things=things)


def unseen(name: str, *values: Value) -> Value:
    """What comes out of code that is not seen: it differs where what goes in does, but for instances of classes."""
    value = derived(*values)
    content = () if is_class_name(name) else picked(lasting(value.content))
    absent = tuple(each for each in content if each.kind is not Kind.DATA)  # of other data it is no other kind of thing
    return replace(value, known=False, content=content, length=lasting(value.length), absent=absent)


def _is_handed_on(frame: Frame, node: ast.expr, *, dispatches: bool) -> bool:
    """A wrapper calls what it was given to wrap, a dispatcher what it finds by a name, or the one it overrides."""
    called = node.func if isinstance(node, ast.Call) else None
    function = frame.function
    if function is None or called is None:
        return False
    match called:
        case ast.Name(id=name):
            captured = name not in frame.scope.names and frame.scope.outer is not None
            return captured or name in function.parameters or name in frame.rounds
        case ast.Call(func=ast.Name(id="getattr")):
            return True
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
            return name == function.name and dispatches
        case _:
            return False
