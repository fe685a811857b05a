"""Which functions of a program enter collectives, by the names of what they call."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from holdfast.lint.patterns.by_name.called_names import CalledNames
from holdfast.lint.patterns.by_name.names import (
    is_collective,
    is_collective_name,
    is_none,
    is_of_library,
    is_rank_test,
    is_size_test,
    may_be_collective,
    names_group,
)
from holdfast.lint.patterns.rank_guards import iter_units_at
from holdfast.lint.patterns.scopes import child_nodes, walk
from holdfast.lint.sources.modules import FUNCTIONS, Module, last_name

_CLOSED = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
#: Names of functions that mean something else elsewhere.
_COMMON = frozenset({
    "run", "step", "forward", "backward", "update", "close", "log", "print", "get", "set", "add",
    "save", "load", "init", "setup", "start", "stop", "append", "read", "write", "call", "main",
    "train", "reset", "wait", "send", "format", "build", "create", "compute", "apply", "clear",
    "pop", "items", "keys", "values", "copy", "to", "info", "debug", "warning", "error", "flush",
    "state_dict", "load_state_dict", "parameters", "zero_grad", "eval", "fit", "test", "join",
    "synchronize", "finish", "register", "export", "execute", "process", "__init__", "item",
})  # fmt: skip
_SEEDS = re.compile(
    r"all_?reduce|all_?gather|barrier|reduce_scatter|gather|broadcast|wait_for_everyone"
    r"|mesh_reduce|rendezvous|state_dict|save_checkpoint|save_state|all_to_all|alltoall"
)
#: Names of calls that may evaluate a model.
_FORWARD = re.compile(r"model$|evaluate|validat")
#: Names of functions outside the program that train.
_TRAINS = re.compile(r"^(?:train_\w*|run_epoch|training_step)$")
_LEAVES = (ast.Return, ast.Continue, ast.Break)
_MAX_ROUNDS = 4
_ONE_SIDED = re.compile(r"(?:rank|main|master|zero)[^\n]{0,60}\s+else None\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class EnteredCall:
    """A call that enters a collective: which, and where the program does."""

    call: ast.Call
    name: str
    module: Module
    line: int
    in_group: bool = False
    kind: str = "collective"


class NamedCollectives:
    """The calls of a program that enter collectives."""

    def __init__(self, modules: Collection[Module]) -> None:
        self._homes: dict[str, list[tuple[Module, Function]]] = defaultdict(list)
        self._entering: dict[str, tuple[str, Module, int, bool]] = {}
        self._entered: dict[ast.Call, EnteredCall | None] | None = None
        self.one_sided = frozenset(
            name
            for module in modules
            if _ONE_SIDED.search(module.text)
            for name in _one_sided_names(module.tree)
        )
        self._modules = modules
        self._called = {module: CalledNames(module) for module in modules}
        self._called_in: dict[Function, set[str]] = {}
        for module in modules:
            called = self._called[module]
            for function in _functions(module.tree):
                self._homes[function.name].append((module, function))
                last = function.end_lineno or function.lineno
                self._called_in[function] = called.within(function.lineno, last)
        self._training = {
            function.name
            for homes in self._homes.values()
            for module, function in homes
            if "backward" in self._called_in[function]
            and ".backward(" in module.text
            and function.name not in _COMMON
            and any(
                isinstance(node, ast.Call) and last_name(node.func) == "backward"
                for node in walk(function)
            )
        }
        self._find_entering()
        self._named = {*self._entering, *self._training, "backward"}

    def lines(self, module: Module) -> list[int]:
        """Return the lines of a module that may enter a collective or train."""
        lines, line, start = set[int](), 1, 0
        for found in _SEEDS.finditer(module.text):
            line += module.text.count("\n", start, found.start())
            lines.add(line)
            start = found.start()
        called = self._called[module]
        for name in called.names:
            if name in self._named or _FORWARD.match(name):
                lines.update(called.lines_of(name))
        return sorted(lines)

    def _find_entering(self) -> None:
        pending = {module for module in self._modules if _SEEDS.search(module.text)}
        for _ in range(_MAX_ROUNDS):
            found = self._grow(pending)
            if not found:
                break
            pending = {
                module
                for module in self._modules
                if any(self._called[module].lines_of(name) for name in found)
            }
        self._entered = {}

    def _grow(self, pending: Collection[Module]) -> list[str]:
        """Add the names of functions of which all definitions enter collectives; return them."""
        found = []
        for name, homes in self._homes.items():
            if name in self._entering or name in _COMMON or name.startswith("__"):
                continue
            if not any(module in pending for module, _ in homes):
                continue
            named = is_collective_name(name)
            entered = [
                self._entered_by(module, function, named=named) for module, function in homes
            ]
            first = next(filter(None, entered), None)
            if first is not None and (named or all(entered)):
                self._entering[name] = (
                    first.name,
                    first.module,
                    first.line,
                    first.in_group,
                )
                found.append(name)
        return found

    def _entered_by(self, module: Module, function: Function, *, named: bool) -> EnteredCall | None:
        """Return the collective that a function enters, whatever the tests if ``named`` so."""
        called = self._called_in[function]
        if called.isdisjoint(self._entering) and not any(map(may_be_collective, called)):
            return None
        if named:
            return self.first(module, function.body)
        return self.first_always(module, function.body, _parameters(function))

    def entered(self, module: Module, node: ast.AST) -> EnteredCall | None:
        """Return the collective that a call enters, itself or in a function of the program."""
        if not isinstance(node, ast.Call):
            return None
        if self._entered is None:  # not all functions that enter collectives are known
            return self._find_entered(module, node)
        if node not in self._entered:
            self._entered[node] = self._find_entered(module, node)
        return self._entered[node]

    def _find_entered(self, module: Module, node: ast.Call) -> EnteredCall | None:
        name = last_name(node.func)
        of_library = is_of_library(node)
        inner = None if of_library else self._entering.get(name)
        if inner is not None:
            return EnteredCall(node, *inner)
        if (of_library or name not in self._homes) and is_collective(node, module.text):
            return EnteredCall(node, name, module, node.lineno, names_group(node))
        return None

    def passes_constant(self, function: Function, parameter: str, position: int) -> bool:
        """Return True if a number is the default of a parameter, or passed for it in a call."""
        default = dict(
            zip(
                reversed([argument.arg for argument in function.args.args]),
                reversed(function.args.defaults),
                strict=False,
            )
        ).get(parameter)
        if _is_number(default) and default is not None and ast.unparse(default) not in ("0", "-1"):
            return True
        if function.args.args[0].arg == "self":
            position -= 1
        called = re.compile(rf"\b{re.escape(function.name)}\([^\n]*\d")
        for module in self._modules:
            lines = self._called[module].lines_of(function.name)
            if not lines or not called.search(module.text):
                continue
            for node in (call for unit in iter_units_at(module, lines) for call in unit.calls):
                if last_name(node.func) == function.name:
                    passed = node.args[position : position + 1] + [
                        keyword.value for keyword in node.keywords if keyword.arg == parameter
                    ]
                    if any(map(_is_number, passed)):
                        return True
        return False

    def returned_names(self, name: str) -> list[str]:
        """Return the names of the values that a function returns together; empty if unknown."""
        for _, function in self._homes.get(name, ()):
            for node in walk(function):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                    return [last_name(element) for element in node.value.elts]
        return []

    def trains(self, call: ast.Call) -> bool:
        """Return True for a backward pass, or a call of a function that has one."""
        name = last_name(call.func)
        if name in self._homes:
            return name in self._training
        return name == "backward" or _TRAINS.match(name) is not None

    def first(self, module: Module, nodes: Sequence[ast.AST]) -> EnteredCall | None:
        """Return the first collective in these nodes, in whatever branch."""
        for node in _own_nodes(nodes, skip_guarded=False, one_sided=self.one_sided):
            entered = self.entered(module, node)
            if entered is not None:
                return entered
        return None

    def first_always(
        self,
        module: Module,
        nodes: Sequence[ast.AST],
        parameters: frozenset[str] = frozenset(),
    ) -> EnteredCall | None:
        """Return the first collective that no test guards but one of the number of ranks."""
        for node in _own_nodes(
            nodes, skip_guarded=True, one_sided=self.one_sided, parameters=parameters
        ):
            entered = self.entered(module, node)
            if entered is not None:
                return entered
        return None


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _parameters(function: Function) -> frozenset[str]:
    arguments = function.args
    return frozenset(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))


def _functions(tree: ast.Module) -> Iterator[Function]:
    for statement in tree.body:
        if isinstance(statement, FUNCTIONS):
            yield statement
        elif isinstance(statement, ast.ClassDef):
            for inner in statement.body:
                if isinstance(inner, FUNCTIONS) and not _is_gradient(inner):
                    yield inner


def _is_gradient(function: Function) -> bool:
    """Return True for ``backward(ctx, ...)`` of an autograd.Function, which autograd calls.

    ``loss.backward()`` does not call it by name.
    """
    return function.name == "backward" and any(
        last_name(decorator) == "staticmethod" for decorator in function.decorator_list
    )


def _own_nodes(
    nodes: Sequence[ast.AST],
    *,
    skip_guarded: bool,
    one_sided: frozenset[str],
    parameters: frozenset[str] = frozenset(),
) -> Iterator[ast.AST]:
    """Yield nodes in source order, without inner functions; optionally without guarded ones."""
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, _CLOSED):
            continue
        if skip_guarded and isinstance(node, ast.If):
            by_size = is_size_test(node.test) and not any(
                isinstance(name, ast.Name) and name.id in parameters for name in walk(node.test)
            )
            if by_size and not is_rank_test(node.test, one_sided):
                stack += [*reversed(node.orelse), *reversed(node.body)]
            elif isinstance(node.body[-1], _LEAVES):
                return
            stack.append(node.test)
            continue
        if skip_guarded and isinstance(node, (ast.IfExp, ast.ExceptHandler)):
            continue
        stack.extend(reversed(child_nodes(node)))


def _one_sided_names(tree: ast.Module) -> Iterator[str]:
    """Yield variables that are assigned ``value if rank == 0 else None``, and nothing else."""
    assigned: dict[str, list[bool]] = defaultdict(list)
    for node in walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            passed_on = isinstance(value, ast.Name) and value.id == last_name(target)
            if isinstance(target, (ast.Name, ast.Attribute)) and not passed_on:
                assigned[last_name(target)].append(
                    isinstance(value, ast.IfExp)
                    and is_none(value.orelse)
                    and is_rank_test(value.test)
                )
    yield from (name for name, answers in assigned.items() if all(answers))
