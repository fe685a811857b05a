"""A parsed Python file whose statements can be replaced: for mutation testing of the linter."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Tests that one rank passes, as they are written in public training programs.
_RANK_TEST = re.compile(
    r"(not )?(\w+(\.\w+)*\.)?(is_(main|master|global_(main|zero)|rank_?(0|zero))(_process)?|"
    r"(get_)?(global_|local_|world_)?rank)(\(\))?"
    r"( (==|!=|<=|>) 0| in [(\[]-1, 0[)\]]| (==|>) -1)?"
)
#: Words of a test that may differ between ranks: what such a branch contains is not mutated.
_RANK_WORD = re.compile(r"rank|is_ma(in|ster)|\bsrc\b|\bdst\b|group_members|leader|coordinator")
_SIZE_TEST = re.compile(r"initialized|available|world_size|num_gpus|is_dist")
COLLECTIVES = frozenset({
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter",
})  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """Consecutive statements of one block, and the statements that replace them."""

    old: Sequence[ast.stmt]
    new: Sequence[ast.stmt]

    @property
    def line(self) -> int:
        """Return the first line that changes."""
        return self.old[0].lineno


@dataclass(frozen=True)
class MutableSource:
    """A file's text and syntax tree, with what operators need to know about its names."""

    text: str
    tree: ast.Module = field(repr=False)
    #: Functions of the program, by name, in which all ranks enter a collective.
    wrappers: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, wrappers: frozenset[str] = frozenset()) -> MutableSource | None:
        """Return the parsed file; None if it is not valid Python."""
        try:
            return cls(text, ast.parse(text), wrappers)
        except (SyntaxError, ValueError):
            return None

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Return the parent of each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def blocks(self) -> list[list[ast.stmt]]:
        """Return all lists of statements, in the order of the file."""
        found = [
            block
            for node in ast.walk(self.tree)
            for name in ("body", "orelse", "finalbody")
            if isinstance(block := getattr(node, name, None), list) and block
        ]
        return sorted(found, key=lambda block: block[0].lineno)

    @cached_property
    def _imported(self) -> dict[str, str]:
        """Return the full names of imported modules and functions."""
        names = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {entry.asname: entry.name for entry in node.names if entry.asname}
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                names |= {
                    entry.asname or entry.name: f"{module}.{entry.name}" for entry in node.names
                }
        return names

    def _is_always_entered(self, statement: ast.stmt) -> bool:
        """Return True for a collective of all ranks that no test of its function decides about.

        Except a test of whether there are several ranks.
        """
        if not self.is_collective_statement(statement) or self.depends_on_rank(statement):
            return False
        scope = self.function(statement)
        tests = [
            ast.unparse(node.test)
            for node in ast.walk(scope or self.tree)
            if isinstance(node, ast.If) and node.lineno < statement.lineno
        ]
        call: ast.Call = statement.value  # type: ignore[attr-defined]
        return all(map(_SIZE_TEST.search, tests)) and not any(
            word.arg == "group" for word in call.keywords
        )

    @cached_property
    def own_wrappers(self) -> frozenset[str]:
        """Return the functions of this file, by name, in which all ranks enter a collective."""
        return frozenset(
            scope.name
            for block in self.blocks
            for statement in block
            if self._is_always_entered(statement)
            if (scope := self.function(statement)) is not None
            and not any(isinstance(above, ast.ClassDef) for above in self.ancestors(scope))
        )

    def calls_wrapper(self, node: ast.AST) -> bool:
        """Return True for a call of a function, imported or of this file, with a collective."""
        if not isinstance(node, ast.Call):
            return False
        module, _, name = self.full_name(node.func).rpartition(".")
        root = ast.unparse(node.func).partition(".")[0]
        if not module:
            return name in self.own_wrappers
        return name in self.wrappers and root in self._imported

    def full_name(self, function: ast.expr) -> str:
        """Return a dotted name with its imports resolved; empty if it is no dotted name."""
        words: list[str] = []
        while isinstance(function, ast.Attribute):
            words.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name):
            return ""
        return ".".join([self._imported.get(function.id, function.id), *reversed(words)])

    def distributed_call(self, node: ast.AST | None) -> str:
        """Return the function of torch.distributed that a node calls; empty for other nodes."""
        if not isinstance(node, ast.Call):
            return ""
        module, _, name = self.full_name(node.func).rpartition(".")
        return name if module in ("torch.distributed", "torch.distributed.c10d") else ""

    def is_collective_statement(self, statement: ast.stmt) -> bool:
        """Return True for a statement that is a call of a collective."""
        return (
            isinstance(statement, ast.Expr)
            and self.distributed_call(statement.value) in COLLECTIVES
        )

    def calls_own_method(self, node: ast.AST) -> bool:
        """Return True for ``self.method()`` of the same class with a collective of all ranks."""
        if not isinstance(node, ast.Call):
            return False
        receiver, _, name = ast.unparse(node.func).rpartition(".")
        return receiver == "self" and (self._class_of(node), name) in self._entering_methods

    @cached_property
    def _entering_methods(self) -> set[tuple[ast.AST | None, str]]:
        return {
            (self._class_of(scope), scope.name)
            for block in self.blocks
            for statement in block
            if self._is_always_entered(statement)
            if (scope := self.function(statement)) is not None
        }

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node."""
        return next((above for above in self.ancestors(node) if isinstance(above, Function)), None)

    def loop(self, node: ast.AST) -> ast.For | ast.While | None:
        """Return the innermost loop around a node in the same function."""
        for above in self.ancestors(node):
            if isinstance(above, ast.For | ast.While):
                return above
            if isinstance(above, Function):
                break
        return None

    def depends_on_rank(self, node: ast.AST) -> bool:
        """Return True if not all ranks need reach a node, judged by the words of its tests."""
        tests = [above.test for above in self.ancestors(node) if isinstance(above, ast.If)]
        scope = self.function(node)
        if scope is not None:
            tests += [
                inner.test
                for inner in ast.walk(scope)
                if isinstance(inner, ast.If)
                and inner.lineno < node.lineno  # type: ignore[attr-defined]
                and any(isinstance(end, ast.Return | ast.Raise) for end in inner.body)
            ]
        return any(_RANK_WORD.search(ast.unparse(test)) for test in tests)

    @cached_property
    def rank_tests(self) -> list[ast.expr]:
        """Return the tests of this file that only one rank, or one of each host, passes."""
        tests = [node.test for node in ast.walk(self.tree) if isinstance(node, ast.If)]
        return [test for test in tests if is_one_rank_test(test)]

    def rank_test_at(self, node: ast.stmt) -> ast.expr | None:
        """Return a test of the file whose names exist at a node; else one of ``get_rank()``."""
        for test in sorted(self.rank_tests, key=lambda test: abs(test.lineno - node.lineno)):
            if self._names_exist(test, node):
                return test
        return self.get_rank_test

    @cached_property
    def get_rank_test(self) -> ast.expr | None:
        """Return ``dist.get_rank() == 0`` by the name of the module in this file."""
        module = next(
            (name for name, full in self._imported.items() if full == "torch.distributed"), None
        )
        if module is None:
            return None
        return ast.parse(f"{module}.get_rank() == 0", mode="eval").body

    def _names_exist(self, test: ast.expr, node: ast.stmt) -> bool:
        scope = self.function(node)
        known = set(_bound_names(self.tree.body, node.lineno if scope is None else 1 << 30))
        if scope is not None:
            known |= set(_bound_names(scope.body, node.lineno))
            known |= {argument.arg for argument in _arguments(scope)}
        names = {name.id for name in ast.walk(test) if isinstance(name, ast.Name)}
        if not names <= known:
            return False
        owner, other = self._class_of(node), self._class_of(test)
        return "self" not in names or owner is other

    def _class_of(self, node: ast.AST) -> ast.AST | None:
        return next((up for up in self.ancestors(node) if isinstance(up, ast.ClassDef)), None)

    def scope_name(self, line: int) -> str:
        """Return the name of the innermost function that contains a line; empty outside."""
        inner = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, Function) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        return max(inner, key=lambda node: node.lineno).name if inner else ""

    def context(self, node: ast.stmt) -> str:
        """Return whether a statement is in a module, function, method or closure, and in a loop."""
        scope = self.function(node)
        if scope is None:
            place = "module"
        elif isinstance(self.parents[scope], ast.ClassDef):
            place = "method"
        else:
            place = "function" if self.function(scope) is None else "closure"
        return f"{place}, loop" if self.loop(node) is not None else place

    def apply(self, mutation: Mutation) -> str | None:
        """Return the text with the statements replaced; None if they do not own their lines."""
        lines = self.text.splitlines()
        first, last = mutation.old[0], mutation.old[-1]
        start, end = first.lineno - 1, last.end_lineno or last.lineno
        indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
        if first.col_offset != len(indent) or lines[start].lstrip().startswith("elif"):
            return None
        new = (
            "\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in mutation.new) or "pass"
        )
        text = "\n".join([*lines[:start], textwrap.indent(new, indent), *lines[end:]]) + "\n"
        return text if MutableSource.parse(text) is not None else None


def is_one_rank_test(test: ast.expr) -> bool:
    """Return True for a test such as ``rank == 0`` or ``is_main_process()``."""
    text = ast.unparse(test)
    if not _RANK_TEST.fullmatch(text):
        return False
    # a bare rank is true on all ranks but one, and `x > -1` on all ranks
    return "is_" in text or text.endswith((" == 0", " in (-1, 0)", " in [-1, 0]"))


def _arguments(scope: Function) -> list[ast.arg]:
    arguments = scope.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _bound_names(body: Sequence[ast.stmt], before: int) -> Iterator[str]:
    """Yield the names bound by imports, definitions and assignments of a block before a line."""
    for statement in body:
        if statement.lineno >= before:
            return
        if isinstance(statement, Function | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (entry.asname or entry.name.split(".")[0] for entry in statement.names)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        yield name.id
