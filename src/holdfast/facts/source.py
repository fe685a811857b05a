"""What the source says around a line: the tests and loops it stands under, and who calls its function in the same file.

Files are parsed, never run. A file that is missing, too large or no Python gives Unknown. Which tests ranks may answer
differently is told by names, through assignments in the same file (:mod:`holdfast.facts.rank_names`).
"""

from __future__ import annotations

import ast
import functools
import io
import stat as modes
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.facts.rank_names import RankNames, Scope, is_rank_decorator
from holdfast.facts.ranks import Place
from holdfast.findings import Unknown

MOST_BYTES = 4 << 20
MOST_CALLERS = 8
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ENDS_PROCESS = frozenset({"exit", "_exit", "abort", "quit", "kill"})
#: Exceptions that end an iteration or a program, or choose a module: catching them is no mistake.
_NO_FAULTS = frozenset(
    {"StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit", "ImportError",
     "ModuleNotFoundError", "Empty"}
)  # fmt: skip


class Guard(msgspec.Struct, frozen=True):
    """A test that decides whether the line is reached: its line, its text, and whether ranks may answer it differently.

    ``branch`` is ``body`` or ``orelse`` where the line stands inside, ``after`` where the test leaves the function or
    loop before it. A decorator such as ``@rank_zero_only`` is a test too.
    """

    line: int
    text: str
    branch: str
    rank_dependent: bool


class Loop(msgspec.Struct, frozen=True):
    """A loop around the line; ``swallows`` is the line in its body of what lets it go on after an exception.

    That is an ``except`` that neither raises nor ends the process, or a ``with suppress(...)``.
    """

    first: int
    last: int
    header: str
    swallows: int | None


class Surroundings(msgspec.Struct, frozen=True):
    """What is known of one line.

    ``begin`` is the line of its function's ``def`` (0: the module); guards and loops stand outermost first; ``callers``
    are calls of that function in the same file; ``swallowed_at`` is the line of the nearest ``except`` around the line
    that would swallow what is raised there.
    """

    function: str
    begin: int
    text: str
    guards: tuple[Guard, ...] = ()
    loops: tuple[Loop, ...] = ()
    callers: tuple[Place, ...] = ()
    swallowed_at: int | None = None


def surroundings(place: Place) -> Surroundings | Unknown:
    """What the source says around ``place``."""
    try:
        status = Path(place.file).stat()
        if not modes.S_ISREG(status.st_mode):
            return Unknown(f"{place.file} is no file")
        if status.st_size > MOST_BYTES:
            return Unknown(f"{place.file} is too large to be a program")
        return _parse(place.file, status.st_mtime_ns).around(place)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Unknown(f"{place.file} cannot be read as Python: {error}")


@functools.lru_cache(maxsize=64)
def _parse(file: str, _changed: int) -> _File:
    content = Path(file).read_bytes()[:MOST_BYTES]
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    text = io.StringIO(content.decode(encoding, errors="replace"), newline=None).read()
    with warnings.catch_warnings(action="ignore"):  # of the user's invalid escapes
        return _File(file, text, ast.parse(text))


class _Findings:
    """What is noted on the way from the module to the line; all of it begins anew in each function."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef | None, scope: Scope) -> None:
        self.name = function.name if function else "<module>"
        self.begin = function.lineno if function else 0
        self.scope = scope
        self.guards: list[Guard] = []
        self.loops: list[Loop] = []
        self.swallowed_at: int | None = None


class _File:
    """One parsed file."""

    def __init__(self, file: str, text: str, tree: ast.Module) -> None:
        self._file, self._lines, self._tree = file, text.split("\n"), tree
        self._ranks = RankNames(tree)

    def around(self, place: Place) -> Surroundings | Unknown:
        """What is known of one line of this file."""
        if not 0 < place.line <= len(self._lines):
            return Unknown(f"{place.file} has no line {place.line}")
        seen = _Findings(None, self._ranks.module)
        body: Sequence[ast.stmt] | None = self._tree.body
        while body is not None:
            statement = self._pass(body, place.line, seen)
            if isinstance(statement, _FUNCTIONS):
                seen = _Findings(statement, self._ranks.scope(statement))
                seen.guards.extend(_decorators(statement))
            body = None if statement is None else self._enter(statement, place.line, seen)
        return Surroundings(
            seen.name, seen.begin, self._lines[place.line - 1].strip(), tuple(seen.guards), tuple(seen.loops),
            self._callers(seen.name), seen.swallowed_at,
        )  # fmt: skip

    def _pass(self, body: Sequence[ast.stmt], line: int, seen: _Findings) -> ast.stmt | None:
        """The statement of a block that holds the line; tests before it that leave are noted."""
        for statement in body:
            if statement.lineno > line:
                return None
            if _last(statement) >= line:
                return statement
            if isinstance(statement, ast.If):
                self._leaving(statement, seen)
        return None

    def _leaving(self, statement: ast.If, seen: _Findings) -> None:
        if any(block and isinstance(block[-1], _LEAVES) for block in (statement.body, statement.orelse)):
            self._guard(statement.test, f"if {ast.unparse(statement.test)}", "after", seen)

    def _enter(self, statement: ast.stmt, line: int, seen: _Findings) -> Sequence[ast.stmt] | None:
        """The block inside the statement that holds the line, noting what decides about it; None at the innermost."""
        for branch, block in _blocks(statement):
            if not block or not block[0].lineno <= line <= _last(block[-1]):
                continue
            if isinstance(statement, _LOOPS) and branch == "body":
                seen.loops.append(self._loop(statement))
            elif isinstance(statement, ast.Try | ast.TryStar) and branch == "body":
                swallowing = (handler.lineno for handler in statement.handlers if _swallows(handler))
                seen.swallowed_at = next(swallowing, seen.swallowed_at)
            if isinstance(statement, ast.If | ast.While):
                word = "while" if isinstance(statement, ast.While) else "if"
                self._guard(statement.test, f"{word} {ast.unparse(statement.test)}", branch, seen)
            elif isinstance(statement, ast.Match):
                self._guard(statement.subject, f"match {ast.unparse(statement.subject)}", branch, seen)
            return block
        if isinstance(statement, _LOOPS):  # its own line, to which it comes back each time
            seen.loops.append(self._loop(statement))
        else:
            self._inline(statement, seen)
        return None

    def _inline(self, statement: ast.stmt, seen: _Findings) -> None:
        """``rank == 0 and evaluate()``, ``score = evaluate() if rank == 0 else None``."""
        value = getattr(statement, "value", None)
        if isinstance(value, ast.IfExp) and _has_call(value.body) != _has_call(value.orelse):
            branch = "body" if _has_call(value.body) else "orelse"
            self._guard(value.test, f"... if {ast.unparse(value.test)}", branch, seen)
        elif isinstance(value, ast.BoolOp) and _has_call(value.values[-1]):
            branch = "body" if isinstance(value.op, ast.And) else "orelse"
            for test in value.values[:-1]:
                self._guard(test, ast.unparse(test), branch, seen)

    def _guard(self, test: ast.expr, text: str, branch: str, seen: _Findings) -> None:
        seen.guards.append(Guard(test.lineno, text, branch, self._ranks.differs(test, seen.scope)))

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> Loop:
        swallows = next((node.lineno for node in _inside(statement.body) if _swallows(node)), None)
        return Loop(statement.lineno, _last(statement), self._lines[statement.lineno - 1].strip(), swallows)

    def _callers(self, function: str) -> tuple[Place, ...]:
        if function == "<module>":
            return ()
        return tuple(Place(self._file, line) for line in sorted(set(self._calls(function)))[:MOST_CALLERS])

    def _calls(self, function: str) -> Iterator[int]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and _called(node) == function:
                yield node.lineno


def _decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Guard]:
    for decorator in function.decorator_list:
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        if is_rank_decorator(getattr(named, "id", "") or getattr(named, "attr", "")):
            yield Guard(decorator.lineno, f"@{ast.unparse(decorator)}", "body", rank_dependent=True)


def _last(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _has_call(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Call) for inner in ast.walk(node))


def _blocks(statement: ast.stmt) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield name, block
    for handler in getattr(statement, "handlers", ()):
        yield "handler", handler.body
    for case in getattr(statement, "cases", ()):
        yield "body", case.body


def _inside(block: Sequence[ast.AST]) -> Iterator[ast.expr | ast.stmt | ast.ExceptHandler]:
    """Everything in a block in the order of lines, but for functions and classes defined there."""
    for node in block:
        if isinstance(node, ast.expr | ast.stmt | ast.ExceptHandler):
            yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _inside(list(ast.iter_child_nodes(node)))


def _swallows(node: ast.AST) -> bool:
    """True for an ``except`` after which the program goes on as if nothing had happened, and ``with suppress()``."""
    if isinstance(node, ast.With | ast.AsyncWith):
        managers = (item.context_expr for item in node.items)
        return any(isinstance(manager, ast.Call) and _called(manager) == "suppress" for manager in managers)
    if not isinstance(node, ast.ExceptHandler) or _names(node.type) & _NO_FAULTS:
        return False
    inside = list(_inside(node.body))
    ends = any(isinstance(part, ast.Call) and _called(part) in _ENDS_PROCESS for part in inside)
    return not ends and not any(isinstance(part, ast.Raise) for part in inside)


def _names(types: ast.expr | None) -> set[str]:
    parts = types.elts if isinstance(types, ast.Tuple) else [types]
    return {getattr(part, "id", "") or getattr(part, "attr", "") for part in parts if part is not None}
