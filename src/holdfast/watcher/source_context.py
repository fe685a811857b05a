"""The source around a line: its guards and loops, and the callers of its function in the same file.

Files are parsed, never executed. A file that is missing, too large or not Python gives Unknown.
:mod:`holdfast.watcher.rank_names` decides which guards depend on the rank.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.python_ast import (
    FunctionNode,
    NotPython,
    last_line,
    last_name,
    parse_python,
    read_python,
    statement_blocks,
)
from holdfast.core.rank_table import SourceLine
from holdfast.watcher.rank_names import NameScope, RankNames, is_rank_decorator

MAX_CALLERS = 8
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ENDS_PROCESS = frozenset({"exit", "_exit", "abort", "quit", "kill"})
#: Exceptions that end an iteration or a program, or select a module: catching them is no mistake.
_CONTROL_FLOW_EXCEPTIONS = frozenset(
    {
        "StopIteration",
        "StopAsyncIteration",
        "GeneratorExit",
        "KeyboardInterrupt",
        "SystemExit",
        "ImportError",
        "ModuleNotFoundError",
        "Empty",
    }
)


class Guard(msgspec.Struct, frozen=True):
    """A test that decides whether the line is reached, and whether it depends on the rank.

    ``branch`` is ``body`` or ``orelse`` if the line is inside, ``after`` if the test leaves the
    function or loop before it, ``raise`` if it raises there. A decorator such as
    ``@rank_zero_only`` is a guard, too.
    """

    line: int
    text: str
    branch: str
    rank_dependent: bool


class EnclosingLoop(msgspec.Struct, frozen=True):
    """A loop around the line.

    ``swallows`` is the line in its body that lets it continue after an exception: an ``except``
    that neither raises nor ends the process, or a ``with suppress(...)``. ``exits`` are the lines
    of the ``break`` and ``return`` statements that leave it.
    """

    first: int
    last: int
    header: str
    swallows: int | None
    exits: tuple[int, ...] = ()


class SourceContext(msgspec.Struct, frozen=True):
    """The source around one line.

    ``begin`` is the line of its function's ``def`` (0: the module). Guards and loops are ordered
    from the outermost. ``callers`` are calls of that function in the same file; ``swallowed_at`` is
    the line of the nearest ``except`` that would swallow an exception raised at the line.
    ``data_loops`` are the loops of the file in which an ``__iter__`` yields.
    """

    function: str
    begin: int
    text: str
    guards: tuple[Guard, ...] = ()
    loops: tuple[EnclosingLoop, ...] = ()
    callers: tuple[SourceLine, ...] = ()
    swallowed_at: int | None = None
    data_loops: tuple[SourceLine, ...] = ()


def read_source_context(line: SourceLine) -> SourceContext | Unknown:
    """Return the source around ``line``."""
    try:
        return _parse(line.file, Path(line.file).stat().st_mtime_ns).context(line)
    except (OSError, NotPython, ValueError, RecursionError, MemoryError) as error:
        return Unknown(f"cannot read {line.file}: {error}")


@functools.lru_cache(maxsize=64)
def _parse(file: str, _modified_ns: int) -> _ParsedFile:
    return _ParsedFile(file, read_python(file))


class _ContextBuilder:
    """What surrounds the line within one function."""

    def __init__(self, function: FunctionNode | None, scope: NameScope) -> None:
        self.name = function.name if function else "<module>"
        self.begin = function.lineno if function else 0
        self.scope = scope
        self.guards: list[Guard] = []
        self.loops: list[EnclosingLoop] = []
        self.swallowed_at: int | None = None


class _ParsedFile:
    """One parsed file."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._lines = file, text.split("\n")
        self._tree = parse_python(text)
        self._ranks = RankNames(self._tree)
        self._calls: dict[str, set[int]] = defaultdict(set)  # name of the function -> lines
        self._data_loops: tuple[SourceLine, ...] = ()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and (name := last_name(node.func)):
                self._calls[name].add(node.lineno)
            elif isinstance(node, ast.FunctionDef) and node.name == "__iter__":
                loops = (each for each in node.body if isinstance(each, _LOOPS) and _yields(each))
                self._data_loops += tuple(
                    SourceLine(file, loop.lineno, node.name) for loop in loops
                )

    def context(self, line: SourceLine) -> SourceContext | Unknown:
        """Descend from the module to the innermost statement at the line."""
        if not 0 < line.line <= len(self._lines):
            return Unknown(f"{line.file} has no line {line.line}")
        builder = _ContextBuilder(None, self._ranks.module)
        block: Sequence[ast.stmt] | None = self._tree.body
        while block is not None:
            statement = self._find_statement(block, line.line, builder)
            if isinstance(statement, FunctionNode):
                builder = _ContextBuilder(statement, self._ranks.scope(statement))
                builder.guards.extend(_decorator_guards(statement))
            block = None if statement is None else self._enter(statement, line.line, builder)
        return SourceContext(
            builder.name,
            builder.begin,
            self._lines[line.line - 1].strip(),
            tuple(builder.guards),
            tuple(builder.loops),
            self._callers(builder.name),
            builder.swallowed_at,
            self._data_loops,
        )

    def _find_statement(
        self, block: Sequence[ast.stmt], line: int, builder: _ContextBuilder
    ) -> ast.stmt | None:
        """Return the statement at the line; add guards for tests before it that leave the block."""
        for statement in block:
            if statement.lineno > line:
                return None
            if last_line(statement) >= line:
                return statement
            if isinstance(statement, ast.If):
                ends = [block[-1] for block in (statement.body, statement.orelse) if block]
                leaves = [end for end in ends if isinstance(end, _LEAVES)]
                if leaves:
                    branch = "raise" if isinstance(leaves[0], ast.Raise) else "after"
                    text = f"if {ast.unparse(statement.test)}"
                    self._add_guard(statement.test, text, branch, builder)
        return None

    def _enter(
        self, statement: ast.stmt, line: int, builder: _ContextBuilder
    ) -> Sequence[ast.stmt] | None:
        """Return the inner block with the line and add its guards; None at the innermost one."""
        for branch, block in statement_blocks(statement):
            if block[0].lineno <= line <= last_line(block[-1]):
                self._add_block(statement, branch, builder)
                return block
        if isinstance(statement, _LOOPS):  # the header, which is evaluated in each iteration
            builder.loops.append(self._loop(statement))
        else:
            self._add_inline_guards(statement, builder)
        return None

    def _add_block(self, statement: ast.stmt, branch: str, builder: _ContextBuilder) -> None:
        if isinstance(statement, _LOOPS) and branch == "body":
            builder.loops.append(self._loop(statement))
        match statement:
            case ast.Try() | ast.TryStar() if branch == "body":
                handlers = (handler for handler in statement.handlers if _swallows(handler))
                builder.swallowed_at = next(
                    (handler.lineno for handler in handlers), builder.swallowed_at
                )
            case ast.If(test=test) | ast.While(test=test):
                keyword = "while" if isinstance(statement, ast.While) else "if"
                self._add_guard(test, f"{keyword} {ast.unparse(test)}", branch, builder)
            case ast.Match(subject=subject):
                self._add_guard(subject, f"match {ast.unparse(subject)}", branch, builder)

    def _add_inline_guards(self, statement: ast.stmt, builder: _ContextBuilder) -> None:
        """Add ``rank == 0 and evaluate()`` and ``score = evaluate() if rank == 0 else None``."""
        value = getattr(statement, "value", None)
        if isinstance(value, ast.IfExp) and _has_call(value.body) != _has_call(value.orelse):
            branch = "body" if _has_call(value.body) else "orelse"
            self._add_guard(value.test, f"... if {ast.unparse(value.test)}", branch, builder)
        elif isinstance(value, ast.BoolOp) and _has_call(value.values[-1]):
            branch = "body" if isinstance(value.op, ast.And) else "orelse"
            for test in value.values[:-1]:
                self._add_guard(test, ast.unparse(test), branch, builder)

    def _add_guard(self, test: ast.expr, text: str, branch: str, builder: _ContextBuilder) -> None:
        depends = self._ranks.depends_on_rank(test, builder.scope)
        builder.guards.append(Guard(test.lineno, text, branch, depends))

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> EnclosingLoop:
        swallows = next((node.lineno for node in _walk(statement.body) if _swallows(node)), None)
        header = self._lines[statement.lineno - 1].strip()
        exits = tuple(sorted(_exits(statement.body, inner=False)))
        return EnclosingLoop(statement.lineno, last_line(statement), header, swallows, exits)

    def _callers(self, function: str) -> tuple[SourceLine, ...]:
        lines = self._calls.get(function, set())
        return tuple(SourceLine(self._file, line) for line in sorted(lines)[:MAX_CALLERS])


def _decorator_guards(function: FunctionNode) -> Iterator[Guard]:
    for decorator in function.decorator_list:
        name = last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if is_rank_decorator(name):
            yield Guard(decorator.lineno, f"@{ast.unparse(decorator)}", "body", rank_dependent=True)


def _has_call(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Call) for inner in ast.walk(node))


def _yields(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))


def _walk(block: Sequence[ast.AST]) -> Iterator[ast.expr | ast.stmt | ast.ExceptHandler]:
    """Yield the nodes of a block in line order, without nested functions and classes."""
    for node in block:
        if isinstance(node, ast.expr | ast.stmt | ast.ExceptHandler):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _walk(list(ast.iter_child_nodes(node)))


def _exits(block: Sequence[ast.AST], *, inner: bool) -> Iterator[int]:
    """Yield the lines at which a loop is left; ``inner``: the block is in a loop inside of it."""
    for node in block:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not inner):
            yield node.lineno
        elif not isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        ):
            is_loop = isinstance(node, _LOOPS)
            yield from _exits(list(ast.iter_child_nodes(node)), inner=inner or is_loop)


def _swallows(node: ast.AST) -> bool:
    """Return whether the node swallows exceptions: an ``except`` block, or ``with suppress()``."""
    if isinstance(node, ast.With | ast.AsyncWith):
        managers = (item.context_expr for item in node.items)
        return any(
            isinstance(manager, ast.Call) and last_name(manager.func) == "suppress"
            for manager in managers
        )
    if not isinstance(node, ast.ExceptHandler):
        return False
    types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    if any(last_name(part) in _CONTROL_FLOW_EXCEPTIONS for part in types):
        return False
    return not any(
        isinstance(part, ast.Raise)
        or (isinstance(part, ast.Call) and last_name(part.func) in _ENDS_PROCESS)
        for part in _walk(node.body)
    )
