"""Analyze a whole program: execute all modules repeatedly until a fixpoint."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    EffectSummary,
    Operation,
    iter_events,
    summarize_path,
)
from holdfast.lint.abstract_domain.values import (
    HEAP,
    NO_FACTS,
    UNKNOWN,
    UNKNOWN_OBJECT,
    TaintKind,
    TaintSource,
    Value,
    constant_value,
    open_dict_of,
)
from holdfast.lint.abstract_state.abstract_objects import (
    LAUNCHER_RANK,
    FunctionObject,
    Instance,
    instance_of,
)
from holdfast.lint.abstract_state.arguments import positional_arguments
from holdfast.lint.abstract_state.frames import FunctionSummary, module_frame
from holdfast.lint.abstract_state.path_names import forget_functions
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.bare_models import BARE
from holdfast.lint.divergence.environment_variables import find_set_variables
from holdfast.lint.divergence.file_accesses import runs_on_one_rank
from holdfast.lint.divergence.file_order import find_file_orders
from holdfast.lint.divergence.misused_values import find_early_queries
from holdfast.lint.divergence.ordering import find_in_program
from holdfast.lint.divergence.random_states import with_restored_states
from holdfast.lint.interpreter.blocks import BlockExecutor
from holdfast.lint.interpreter.calls import CallEvaluator
from holdfast.lint.interpreter.definitions import DefinitionExecutor
from holdfast.lint.interpreter.divergence_recorder import DivergenceRecorder
from holdfast.lint.interpreter.expressions import ExpressionEvaluator
from holdfast.lint.interpreter.functions import FunctionRunner
from holdfast.lint.interpreter.literals import LiteralEvaluator
from holdfast.lint.interpreter.lookup import NameEvaluator
from holdfast.lint.interpreter.statements import StatementExecutor
from holdfast.lint.library import RANK_PARAMETERS
from holdfast.lint.patterns import find_patterns
from holdfast.lint.patterns.averages import find_means_of_means
from holdfast.lint.patterns.by_name import find_by_name
from holdfast.lint.patterns.failed_scores import find_failed_scores
from holdfast.lint.patterns.file_races import CHANGES_BY_ALL
from holdfast.lint.sources.modules import Function, Module

#: Maximum number of rounds; from the second on, only what may have changed runs again.
_MAX_ROUNDS = 4
_RECURSION_LIMIT = 8000
_COLLECTIVE = re.compile(r"barrier|gather|all_?reduce|reduce_|broadcast|scatter|wait_for_every")
#: A name that is called, not defined.
_CALLED_NAME = re.compile(r"(?<!def )(?<!class )\b(\w+)\(")


class Program:
    """A program, and the parts of the interpreter that executes it.

    ``strict``: also record undecided divergences.
    """

    def __init__(self, modules: Mapping[str, Module], *, strict: bool = False) -> None:
        self._strict = strict
        self._state = state = InterpreterState(modules)
        self._recorder = DivergenceRecorder(state, strict=strict)
        self._runner = FunctionRunner(state, self._recorder)
        self._module_effects: list[EffectSummary] = []
        #: Effects of modules, each with its file, and of functions that nothing calls.
        self._root_effects: list[tuple[EffectSummary, str]] = []
        self._called_names: set[str] = set()
        calls, lookup = CallEvaluator(state), NameEvaluator(state, self._runner)
        state.call, state.invoke = calls.call, self._runner.invoke
        state.evaluate_attribute = lookup.evaluate_attribute
        state.evaluators = {
            **lookup.evaluators,
            **calls.evaluators,
            **LiteralEvaluator(state).evaluators,
            **ExpressionEvaluator(state).evaluators,
        }
        state.executors = {
            **DefinitionExecutor(state, self._runner, lookup).executors,
            **StatementExecutor(state, self._recorder).executors,
            **BlockExecutor(state).executors,
        }

    def analyze(self) -> Sequence[Divergence]:
        """Return all divergences of the program; call it once."""
        state = self._state
        with _deep_stack():
            self._run_to_fixpoint()
            divergences = self._collect_divergences()
        state.release()
        forget_functions()
        modules = state.modules.values()
        patterns = (
            find_patterns(modules, state.symbols),
            find_failed_scores(modules),
            find_means_of_means(modules, state.symbols),
        )
        proved = {(divergence.kind, divergence.guard) for divergence in divergences.values()}
        alone = state.file_changes[True] - state.file_changes[False]
        for divergence in chain.from_iterable(patterns):
            changed = divergence.guard.file, divergence.guard.line
            if divergence.kind in CHANGES_BY_ALL and changed in alone:
                continue
            if not (divergence.by_name and (divergence.kind, divergence.guard) in proved):
                divergences.setdefault((divergence.kind, divergence.location), divergence)
        known = {
            (item.location.file, item.location.line)
            for item in divergences.values()
            if item.kind != "undecided"
        }
        for divergence in find_by_name(modules, strict=self._strict):
            file, line = divergence.location.file, divergence.location.line
            if not any((file, near) in known for near in (line - 1, line, line + 1)):
                divergences.setdefault((divergence.kind, divergence.location), divergence)
        for divergence in find_set_variables(modules):
            divergences.setdefault((f"set {divergence.text}", divergence.location), divergence)
        unlimited = state.group_timeouts == {"default"}
        return [item for item in divergences.values() if item.kind != "long" or unlimited]

    def summarize(
        self, functions: Iterable[Function], matters: Callable[[FunctionSummary], bool]
    ) -> dict[Function, dict[str, FunctionSummary]]:
        """Return what functions do, of those that matter if called with their defaults.

        The key is the flag that is not as by default, or empty. Call it once.
        """
        found: dict[Function, dict[str, FunctionSummary]] = {}
        with _deep_stack():
            self._run_to_fixpoint()
            for function in functions:
                defaults = self._default_values(function)
                summary = self._summarize(function, defaults)
                if not matters(summary):
                    continue
                found[function] = {"": summary}
                for name, value in defaults.items():
                    if isinstance(value.const, bool):
                        flipped = defaults | {name: constant_value(not value.const)}
                        found[function][name] = self._summarize(function, flipped)
        self._state.release()
        return found

    def _default_values(self, function: Function) -> dict[str, Value]:
        """Return the values of all parameters, by name: constant defaults, or unknown."""
        arguments = function.node.args
        extra = (arguments.vararg, arguments.kwarg)
        names = dict.fromkeys(function.parameters, UNKNOWN)
        names |= {parameter.arg: UNKNOWN for parameter in extra if parameter is not None}
        written = {name: function.default_of(name) for name in function.parameters}
        keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        written |= {parameter.arg: default for parameter, default in keywords}
        for name, default in written.items():
            names[name] = UNKNOWN
            if isinstance(default, ast.Constant):
                names[name] = constant_value(default.value)
        if function.owner is not None and function.parameters:
            names[function.parameters[0]] = instance_of(function.owner)
        return names

    def _summarize(self, function: Function, names: dict[str, Value]) -> FunctionSummary:
        return self._runner.summarize(function, names, None, module_frame(function.module))

    def _run_to_fixpoint(self) -> None:
        for _ in range(_MAX_ROUNDS):
            self._state.summaries.start_round()
            self._run_round()
            if not self._state.summaries.is_stale:
                break

    def _collect_divergences(self) -> dict[tuple[str, SourceLine], Divergence]:
        """Return the divergences of the last round and those of program order."""
        runs = list(self._state.summaries.current_runs)
        divergences: dict[tuple[str, SourceLine], Divergence] = {}
        for run in runs:
            for key, divergence in run.divergences.items():
                divergences.setdefault(key, divergence)
        is_bare = any(each.kind == BARE for each in divergences.values())
        if is_bare and any(
            isinstance(event, Operation) and event.kind in ("forward", "backward")
            for body in (*self._module_effects, *(body for body, _ in self._root_effects))
            for event in iter_events(body.path)
        ):  # a wrapper is used
            divergences = {key: each for key, each in divergences.items() if each.kind != BARE}
        divergences = with_restored_states(self._state, divergences)
        threads = [thread for run in runs for thread in run.threads]
        for body, script in self._root_effects:
            for divergence in find_file_orders(body, script):
                divergences.setdefault((divergence.kind, divergence.location), divergence)
        for body in self._module_effects:
            for divergence in (*find_early_queries(body), *find_in_program(body, threads)):
                divergences.setdefault((divergence.kind, divergence.location), divergence)
        return divergences

    def _run_round(self) -> None:
        state = self._state
        functions = chain.from_iterable(module.functions() for module in state.modules.values())
        for function in (*functions, *state.nested_functions.values()):
            function.run_count = 0
        self._runner.start_round()
        self._module_effects, self._root_effects = [], []
        state.file_changes = {False: set(), True: set()}
        for module in self._modules_in_order():
            module.variables[HEAP] = NO_FACTS
            frame = module_frame(module)
            state.run_block(frame, module.tree.body)
            body = summarize_path(frame.effects)
            self._recorder.record_divergences(frame, body)
            self._module_effects.append(body)
            if not module.is_test:
                self._root_effects.append((body, module.file))
        roots = [
            (module, function)
            for module in self._modules_in_order()
            for function in module.functions()
            if state.relevance.covers_all or function in state.relevance.entering_functions
        ]
        # what the program seems to call runs with known arguments first; what a library offers
        # also runs with unknown ones, except for constructors: their attributes would be unknown
        idle = {function for _, function in roots if not function.run_count}
        for later in (False, True):
            for module, function in roots:
                if self._seems_called(function) is later and (
                    not function.run_count
                    or (later and function in idle and _is_offered(module, function))
                ):
                    state.in_tests = module.is_test
                    self._run_uncalled(function)
        state.in_tests = False

    def _seems_called(self, function: Function) -> bool:
        """Return True if a call in the program has the name of a function, or of its class."""
        if not self._called_names:
            for module in self._state.modules.values():
                if not module.is_test:
                    self._called_names.update(_CALLED_NAME.findall(module.text))
        is_constructor = function.owner is not None and function.name == "__init__"
        name = function.owner.name if is_constructor and function.owner else function.name
        return name in self._called_names

    def _modules_in_order(self) -> Iterator[Module]:
        """Yield the program's modules first, scripts after what they import, then its tests."""
        state = self._state
        modules = sorted(state.modules.values(), key=lambda module: "__main__" in module.text)
        for state.in_tests in (False, True):
            yield from (item for item in modules if item.is_test is state.in_tests)
        state.in_tests = False

    def _run_uncalled(self, function: Function) -> None:
        """Run a function that nothing in the program calls, with unknown arguments."""
        names = {name: self._parameter(function, name) for name in function.parameters}
        arguments = function.node.args
        extra = (*arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
        names |= {parameter.arg: UNKNOWN for parameter in extra if parameter is not None}
        if arguments.kwarg is not None and (
            objects := self._state.known_objects(function, "model")
        ):
            model = Value(known=False, objects=objects)
            passed = open_dict_of({"model": model}, UNKNOWN)
            names[arguments.kwarg.arg] = Value(known=False, objects=(passed,))
        if function.owner is not None and function.parameters:
            names[function.parameters[0]] = instance_of(function.owner)
        caller = module_frame(function.module)
        self._state.root = function
        summary = self._runner.summarize(function, names, None, caller)
        if not runs_on_one_rank(function) and not function.module.is_test:
            self._root_effects.append((summary.effects, ""))
        self._state.root = None
        decorated = self._runner.decorated_value(function, None)
        # run what its decorators return
        if function.decorators and decorated.objects != (FunctionObject(function),):
            self._state.call(
                caller,
                function.decorators[0],
                decorated,
                positional_arguments(*(names[parameter] for parameter in function.parameters)),
            )
            self._recorder.record_path_divergences(tuple(caller.effects))

    def _parameter(self, function: Function, name: str) -> Value:
        if name in RANK_PARAMETERS and not _is_size(function, name):
            source = TaintSource(
                TaintKind.LOCAL_RANK if "local" in name else TaintKind.RANK,
                function.module.file,
                function.node.lineno,
                f"the parameter {name}",
                by_name="world_size" not in function.parameters,
            )
            return Value((source,), objects=(LAUNCHER_RANK,))
        if not self._state.is_small:
            return UNKNOWN
        cls = self._state.symbols.annotated_class(function, name)
        if cls is not None:
            return Value(known=False, objects=(Instance(cls), UNKNOWN_OBJECT))
        objects = self._state.known_objects(function, name)
        return Value(known=False, objects=objects) if objects else UNKNOWN


def _is_offered(module: Module, function: Function) -> bool:
    """Return True for a function with a collective that another program may call."""
    if "__main__" in module.text or function.name.startswith("__"):
        return False
    lines = module.lines[function.node.lineno - 1 : function.node.end_lineno]
    return any(map(_COLLECTIVE.search, lines))


def _is_size(function: Function, parameter: str) -> bool:
    """Return whether the parameter has a default above 0, as the rank of a matrix has."""
    default = function.default_of(parameter)
    return (
        isinstance(default, ast.Constant) and isinstance(default.value, int) and default.value > 0
    )


@contextmanager
def _deep_stack() -> Iterator[None]:
    """Raise the recursion limit: each call of the program takes about a dozen frames."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
