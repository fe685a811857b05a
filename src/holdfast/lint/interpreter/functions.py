"""Functions of the program: executed once per calling context, and decorated."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import cast

from msgspec.structs import replace

from holdfast.lint import varying_values
from holdfast.lint.abstract_domain.effects import (
    EMPTY_SUMMARY,
    FILE_ACCESSES,
    Branch,
    EffectSummary,
    FunctionCall,
    Operation,
    iter_events,
    summarize_path,
)
from holdfast.lint.abstract_domain.values import (
    HEAP,
    NO_CONSTANT,
    NO_FACTS,
    UNIFORM,
    UNKNOWN,
    DictEntries,
    OpenDict,
    Taint,
    TaintKind,
    TaintSource,
    Value,
    as_selection,
    combine_values,
    constant_value,
    dict_of,
    join_values,
    merge_taint,
    persistent_taint,
    taint_kinds,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    FunctionObject,
    TupleElements,
    VariableScope,
    bind_method,
    mark_contained,
)
from holdfast.lint.abstract_state.arguments import Arguments, positional_arguments
from holdfast.lint.abstract_state.frames import Frame, FunctionSummary, module_frame
from holdfast.lint.abstract_state.function_summaries import Context
from holdfast.lint.abstract_state.heap import return_facts
from holdfast.lint.abstract_state.mutations import store_mutation
from holdfast.lint.abstract_state.path_names import passed_paths
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.long_work import record_function_work
from holdfast.lint.interpreter.call_contexts import value_signature
from holdfast.lint.interpreter.divergence_recorder import DivergenceRecorder
from holdfast.lint.sources.modules import Function, dotted_name, is_class_name

#: Maximum call depth, recursion depth, and number of separate contexts of a function.
_MAX_DEPTH, _MAX_RECURSION, _MAX_CONTEXTS = 40, 2, 8
#: Maximum number of contexts for a function that calls methods by name (``getattr``).
_MAX_DISPATCH_CONTEXTS = 32


class FunctionRunner:
    """Runs functions of the program, once per calling context."""

    def __init__(self, state: InterpreterState, recorder: DivergenceRecorder) -> None:
        self.state = state
        self.recorder = recorder
        self._active_calls: dict[Function, int] = {}
        self._depth = 0
        self._decorated: dict[Function, Value] = {}
        self._dispatchers: dict[Function, bool] = {}

    def start_round(self) -> None:
        """Apply decorators again."""
        self._decorated.clear()

    def invoke(
        self, frame: Frame, node: ast.expr, obj: FunctionObject, arguments: Arguments
    ) -> Value:
        """Run a function with these arguments and record its effects."""
        if obj.bound is not None:
            arguments = replace(
                arguments,
                positional=[obj.bound, *arguments.positional],
                nodes=[None, *arguments.nodes],
            )
        function = obj.function
        record_function_work(frame, node, function)
        self.state.mark_called(function)
        if id(
            function.node
        ) not in self.state.nested_functions and not self.state.relevance.is_relevant(function):
            return unknown_result(function.name, *arguments.all_values)
        names = self._bind_arguments(function, arguments) | {HEAP: frame.facts}
        summary = self.summarize(function, names, obj.scope, frame)
        control = merge_taint(obj.guard, self._cache_taint(frame, node, function, arguments))
        facts = join_values((frame.facts, summary.facts), control) if control else summary.facts
        return_facts(frame.scope.names, facts)
        frame.entered_facts = summary.entered
        if summary.effects.is_relevant:
            body = summary.effects
            if "creation" in body.tags and not control and not frame.control:
                self._add_creations(body)
            if control:
                branch = Branch(
                    frame.location(node), control[0].text, control, known=True, yes=body.path, no=()
                )
                body = summarize_path((branch,))
                self.recorder.record_path_divergences((branch,))
            through = _is_forwarded(frame, node, dispatches=self._dispatches(function))
            paths = (
                passed_paths(self.state, frame, node, function, arguments)
                if body.tags & FILE_ACCESSES
                else ()
            )
            frame.add_effect(
                FunctionCall(function.name, frame.location(node), body, through, paths)
            )
        self._apply_mutations(frame, function, arguments, summary)
        return summary.value if not control else join_values((summary.value, UNIFORM), control)

    def _add_creations(self, body: EffectSummary) -> None:
        """Record that all ranks create the groups of a called function."""
        for event in iter_events(body.path):
            if isinstance(event, Operation) and event.kind == "creation":
                self.state.add_creation(event.location)

    def _cache_taint(
        self, frame: Frame, node: ast.expr, function: Function, arguments: Arguments
    ) -> Taint:
        """Return why some ranks skip a cached function: rank-local arguments may be cached."""
        if not function.decorated_by("lru_cache", "cache"):
            return ()
        rank_local = any(
            BATCH in value.objects or TaintKind.DATA in taint_kinds(value.content)
            for value in arguments.all_values
        )
        if rank_local:
            return (TaintSource(TaintKind.DATA, frame.file, node.lineno, ast.unparse(node)),)
        return ()

    def _apply_mutations(
        self, frame: Frame, function: Function, arguments: Arguments, summary: FunctionSummary
    ) -> None:
        """Apply a function's in-place changes of its arguments to the caller's variables."""
        if not summary.mutated:
            return
        for at, name in enumerate(function.parameters):
            argument = arguments.node(at, name) if name in summary.mutated else None
            while isinstance(argument, ast.Subscript):
                argument = argument.value
            if isinstance(argument, (ast.Name, ast.Attribute)):
                store_mutation(self.state, frame, argument, summary.mutated[name])

    def _bind_arguments(self, function: Function, arguments: Arguments) -> dict[str, Value]:
        signature = function.node.args
        names: dict[str, Value] = {}
        parameters = function.parameters
        first_default = len(parameters) - len(signature.defaults)
        for at, name in enumerate(parameters):
            value = arguments.get(at, name)
            if value is None and at >= first_default:
                value = self._default_value(function, signature.defaults[at - first_default])
                if arguments.starred is not None:
                    content = merge_taint(value.content, arguments.starred.content)
                    value = Value(content=content, absent=arguments.starred.length, known=False)
            if value is None:
                value = arguments.starred if arguments.starred is not None else UNKNOWN
            if value == UNKNOWN and (objects := self.state.known_objects(function, name)):
                value = replace(value, objects=objects)
            names[name] = value
        for parameter, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True):
            value = arguments.named.get(parameter.arg)
            if value is None:
                value = self._default_value(function, default) if default is not None else UNKNOWN
            names[parameter.arg] = value
        if signature.vararg is not None:
            extra = arguments.positional[len(parameters) :]
            names[signature.vararg.arg] = (
                Value(items=tuple(extra))
                if arguments.starred is None
                else _varargs_value([*extra, arguments.starred])
            )
        if signature.kwarg is not None:
            unbound = {name: value for name, value in arguments.named.items() if name not in names}
            content = merge_taint(*(item.content for item in unbound.values()))
            names[signature.kwarg.arg] = Value(content, objects=(dict_of(unbound),))
        return names

    def _default_value(self, function: Function, default: ast.expr) -> Value:
        if isinstance(default, ast.Constant):
            return constant_value(default.value)
        return self.state.evaluate(module_frame(function.module), default)

    def summarize(
        self,
        function: Function,
        names: dict[str, Value],
        outer: VariableScope | None,
        caller: Frame,
    ) -> FunctionSummary:
        """Return the summary of a function for these arguments, cached by context."""
        facts = names.get(HEAP, NO_FACTS)
        signatures = tuple(
            [value_signature(value) for name, value in names.items() if name != HEAP]
        )
        context = self._context(function, signatures, outer, caller, facts)
        cached = self.state.summaries.lookup(context)
        if cached is not None:
            return cached
        depth = self._active_calls.get(function, 0)
        if depth >= _MAX_RECURSION or self._depth >= _MAX_DEPTH:
            return FunctionSummary(UNKNOWN, EMPTY_SUMMARY, {}, facts)
        if function.run_count > (
            _MAX_DISPATCH_CONTEXTS if self._dispatches(function) else _MAX_CONTEXTS
        ):
            # too many contexts: constants are no longer distinguished
            names = {name: _widen(value) for name, value in names.items()}
            names[HEAP] = facts = self.state.heap.counts(facts)
            signatures = tuple(
                (taint_kinds(value.content), value.const)
                for name, value in names.items()
                if name != HEAP
            )
            context = self._context(function, signatures, outer, caller, facts)
            cached = self.state.summaries.lookup(context)
            if cached is not None:
                return cached
        return self._run_in_context(context, function, names, outer, caller)

    def _context(
        self,
        function: Function,
        signatures: tuple[Hashable, ...],
        outer: VariableScope | None,
        caller: Frame,
        facts: Value,
    ) -> Context:
        """Return the context of a call."""
        created, number = frozenset(caller.lazily_created), self.state.summaries.number
        key = number((
            id(function.node),
            outer,
            taint_kinds(caller.control),
            taint_kinds(caller.own_control),
            caller.join_depth > 0,
            caller.may_survive,
            signatures,
        ))  # fmt: skip
        return Context(key, number((key, created, value_signature(facts))), facts, created)

    def _run_in_context(
        self,
        context: Context,
        function: Function,
        names: dict[str, Value],
        outer: VariableScope | None,
        caller: Frame,
    ) -> FunctionSummary:
        """Run a function and keep its summary; it can run again after what it read has changed."""
        state, root, in_tests = self.state, self.state.root, self.state.in_tests
        calling = Frame(
            caller.function,
            caller.scope,
            caller.control,
            caller.caller_control,
            lazily_created=caller.lazily_created,
            join_depth=caller.join_depth,
            in_tried_loop=caller.may_survive,
        )

        def run_again() -> None:
            before = state.root, state.in_tests
            state.root, state.in_tests = root, in_tests
            self._run_in_context(context, function, names, outer, calling)
            state.root, state.in_tests = before

        depth = self._active_calls.get(function, 0)
        self._active_calls[function] = depth + 1
        self._depth += 1
        try:
            # a closure is another object if its function runs again
            again = run_again if outer is None else None
            with state.summaries.run(context, function, again) as run:
                run.summary = self._run_function(function, names, outer, caller)
        finally:
            self._active_calls[function] = depth
            self._depth -= 1
        return run.summary

    def _run_function(
        self,
        function: Function,
        names: dict[str, Value],
        outer: VariableScope | None,
        caller: Frame,
    ) -> FunctionSummary:
        scope = VariableScope({HEAP: NO_FACTS} | names, function.module, outer)
        frame = Frame(function, scope, caller.control, caller.control, caller.own_control)
        frame.lazily_created, frame.join_depth = caller.lazily_created, caller.join_depth
        frame.in_tried_loop = caller.may_survive
        frame.used_names = self.state.summaries.current.used_names
        if function.decorated_by("lru_cache", "cache", "cached_property"):
            frame.lazily_created = (*frame.lazily_created, f"{function.name}()")
        if isinstance(function.node, ast.Lambda):
            value = self.state.evaluate(frame, function.node.body)
            return FunctionSummary(value, summarize_path(frame.effects), {}, frame.facts)
        self.state.run_block(frame, function.node.body)
        body = summarize_path(frame.effects)
        self.recorder.record_divergences(frame, body)
        self._run_handlers(frame)
        if frame.yields:
            value = join_values(frame.yields)
            objects = (TupleElements(value.items), *value.objects) if value.items else value.objects
            value = Value(
                value.content,
                () if frame.pads_rounds else value.length,
                merge_taint(*(each.order for each in frame.yields)),
                known=value.known,
                objects=objects,
            )
        else:
            value = _return_value(frame)
        mutated = {name: frame.mutated[name] for name in names if name in frame.mutated}
        return FunctionSummary(value, body, mutated, frame.final_facts, frame.yield_facts)

    def _run_handlers(self, frame: Frame) -> None:
        """Run inner functions that only unknown code may call, such as registered handlers."""
        returned = {obj for value in frame.returns for obj in value.objects}
        for value in list(frame.scope.names.values()):
            for obj in value.objects_of(FunctionObject):
                if obj.scope is not frame.scope or obj.function.run_count or obj in returned:
                    continue
                count = len(obj.function.parameters)
                with frame.collect_effects():
                    unknown = positional_arguments(*[UNKNOWN] * count)
                    definition = cast(
                        "ast.expr", obj.function.node
                    )  # for the line: nothing calls it
                    self.invoke(frame, definition, obj, unknown)

    def _dispatches(self, function: Function) -> bool:
        """Return True if the function calls methods by name with ``getattr``."""
        answer = self._dispatchers.get(function)
        if answer is None:
            lines = function.module.lines[function.node.lineno - 1 : function.node.end_lineno]
            answer = self._dispatchers[function] = any("getattr" in line for line in lines) and any(
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Call)
                and dotted_name(node.func.func) == "getattr"
                for node in ast.walk(function.node)
            )
        return answer

    # ---- decorators

    def decorated_value(self, function: Function, bound: Value | None) -> Value:
        """Return a function with its decorators applied, bound to an instance."""
        value = self._decorated.get(function)
        if value is None:
            # in case a decorator refers to it
            self._decorated[function] = Value(objects=(FunctionObject(function),))
            frame = module_frame(function.module)
            value = self._decorated[function] = self.apply_decorators(
                frame, FunctionObject(function)
            )
        if bound is None:
            return value
        return replace(value, objects=tuple(bind_method(obj, bound) for obj in value.objects))

    def apply_decorators(self, frame: Frame, obj: FunctionObject) -> Value:
        """Apply the decorators, innermost first."""
        value = Value(objects=(obj,))
        for decorator in reversed(obj.function.decorators):
            value = self._apply_decorator(frame, decorator, value)
        return value

    def _apply_decorator(self, frame: Frame, decorator: ast.expr, value: Value) -> Value:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        decorator_value = self.state.evaluate(frame, called)
        if decorator_value.objects_of(FunctionObject):
            if isinstance(decorator, ast.Call):
                decorator_value = self.state.evaluate(frame, decorator)
            result = self.state.call(frame, decorator, decorator_value, positional_arguments(value))
            return result if result.objects_of(FunctionObject) else value
        if isinstance(called, ast.Attribute) and called.attr == "on":
            registers = self.state.evaluate(frame, decorator)
            self.state.call(frame, decorator, registers, positional_arguments(value))
        kind = varying_values.GUARDS.get(dotted_name(called).rpartition(".")[2])
        if kind is None:
            return value
        guard = (
            TaintSource(kind, frame.file, decorator.lineno, f"@{self.state.unparse(decorator)}"),
        )
        objects = (
            replace(obj, guard=guard) if isinstance(obj, FunctionObject) else obj
            for obj in value.objects
        )
        return replace(value, objects=tuple(objects))


def _return_value(frame: Frame) -> Value:
    """Return the result; uniform if every exit returns the same object."""
    if not frame.returns:
        return UNIFORM
    first = frame.returned_values[0]
    if (
        frame.ended
        and len(frame.returned_values) > 1
        and first.objects
        and all(candidate is first for candidate in frame.returned_values)
    ):
        return first
    value = join_values(frame.returns)
    lists = value.items is None and any(item.items is not None for item in frame.returned_values)
    if len(frame.returns) > 1 and (lists or value.objects_of(DictEntries)):
        own = [source for returned in frame.returned_values for source in returned.content]
        which = tuple(source for source in value.content if source not in own)
        joined = join_values(frame.returned_values, which)  # which of the lists or dicts it is
        value = replace(value, objects=joined.objects, length=joined.length)
    if not frame.ended and frame.own_control:
        return join_values((value, UNIFORM), frame.own_control)
    return value


def _varargs_value(values: list[Value]) -> Value:
    """Return the value of ``*args`` of unknown length."""
    value = join_values(values)
    return replace(value, objects=mark_contained(value.objects))


def _widen(value: Value) -> Value:
    """Drop what distinguishes too many contexts, but keep booleans and None."""
    const = value.const if value.const is None or isinstance(value.const, bool) else NO_CONSTANT
    for known in value.objects_of(OpenDict):
        value = replace(known.rest, known=value.known, agreed=value.agreed)
    objects = tuple(obj for obj in value.objects if not isinstance(obj, DictEntries))
    return replace(value, const=const, items=None, objects=objects)


def unknown_result(name: str, *values: Value) -> Value:
    """Return the result of unknown code: tainted like its inputs, except for class instances."""
    value = combine_values(*values)
    content = () if is_class_name(name) else as_selection(persistent_taint(value.content))
    # rank-local data do not change its type
    absent = without_kinds(content, {TaintKind.DATA})
    agreed = any(value.agreed for value in values) and all(
        value.agreed or value.const is not NO_CONSTANT for value in values
    )
    return replace(
        value,
        known=False,
        content=content,
        length=persistent_taint(value.length),
        absent=absent,
        agreed=agreed,
    )


def _is_forwarded(frame: Frame, node: ast.expr, *, dispatches: bool) -> bool:
    """Return True for a call of a wrapped function, a method by name, or an overridden method."""
    called = node.func if isinstance(node, ast.Call) else None
    function = frame.function
    if function is None or called is None:
        return False
    match called:
        case ast.Name(id=name):
            captured = name not in frame.scope.names and frame.scope.outer is not None
            return captured or name in function.parameters or name in frame.loop_variables
        case ast.Call(func=ast.Name(id="getattr")):
            return True
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
            return name == function.name and dispatches
        case _:
            return False
