"""What the source says around a line: the tests and loops it stands under, and who calls its function in the same file.

Files are parsed, never run. A file that is missing, too large or no Python gives Unknown. Rank dependence is by name: a
test that mentions a rank, or a variable that was assigned from one in the same file (``holdfast lint`` looks deeper).
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.facts.ranks import Place
from holdfast.findings import Unknown

MOST_BYTES = 4 << 20
MOST_CALLERS = 8
_RANK = re.compile(r"(^|_)(rank|is_main_process|is_global_zero|is_master|is_local_main_process|is_rank_zero)($|_)", re.I)
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


class Guard(msgspec.Struct, frozen=True):
    """A test that decides whether the line is reached: its line, its text, and whether ranks may answer it differently.

    ``branch`` is ``body`` or ``orelse`` where the line stands inside, ``after`` where the test leaves the function or loop
    before it.
    """

    line: int
    text: str
    branch: str
    rank_dependent: bool


class Loop(msgspec.Struct, frozen=True):
    """A loop around the line; ``swallows`` is the line of an ``except`` in its body that goes on as if nothing had happened."""

    first: int
    last: int
    header: str
    swallows: int | None


class Surroundings(msgspec.Struct, frozen=True):
    """What is known of one line. ``begin`` is the line of its function's ``def`` (0: the module); guards and loops, outermost
    first; ``callers`` are calls of that function in the same file."""

    function: str
    begin: int
    text: str
    guards: tuple[Guard, ...] = ()
    loops: tuple[Loop, ...] = ()
    callers: tuple[Place, ...] = ()


def surroundings(place: Place) -> Surroundings | Unknown:
    """What the source says around ``place``."""
    try:
        stat = os.stat(place.file)
        if stat.st_size > MOST_BYTES:
            return Unknown(f"{place.file} is too large to be a program")
        parsed = _parse(place.file, stat.st_mtime_ns)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Unknown(f"{place.file} cannot be read as Python: {error}")
    return parsed.around(place)


@functools.lru_cache(maxsize=64)
def _parse(file: str, _changed: int) -> _File:
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    return _File(file, text, ast.parse(text))


class _File:
    """One parsed file."""

    def __init__(self, file: str, text: str, tree: ast.Module) -> None:
        self._file, self._lines, self._tree = file, text.splitlines(), tree
        self._tainted = _rank_dependent_names(tree)

    def around(self, place: Place) -> Surroundings | Unknown:
        if not 0 < place.line <= len(self._lines):
            return Unknown(f"{place.file} has no line {place.line}")
        function, begin = "<module>", 0
        guards: list[Guard] = []
        loops: list[Loop] = []
        body: Sequence[ast.stmt] | None = self._tree.body
        while body is not None:
            body, statement = self._enter(body, place.line, guards, loops)
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                function, begin = statement.name, statement.lineno
                guards, loops = [], []
        return Surroundings(
            function, begin, self._lines[place.line - 1].strip(), tuple(guards), tuple(loops), self._callers(function)
        )

    def _enter(
        self, body: Sequence[ast.stmt], line: int, guards: list[Guard], loops: list[Loop]
    ) -> tuple[Sequence[ast.stmt] | None, ast.stmt | None]:
        """The block inside the statement that holds the line, noting what decides about it; None at the innermost."""
        for statement in body:
            if statement.lineno > line:
                break
            if (statement.end_lineno or statement.lineno) < line:
                if isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVES):
                    guards.append(self._guard(statement, "after"))
                continue
            if isinstance(statement, ast.For | ast.AsyncFor | ast.While):
                loops.append(self._loop(statement))
            for branch, block in _blocks(statement):
                if block and block[0].lineno <= line <= (block[-1].end_lineno or 0):
                    if isinstance(statement, ast.If | ast.While):
                        guards.append(self._guard(statement, branch))
                    return block, statement
        return None, None

    def _guard(self, statement: ast.If | ast.While, branch: str) -> Guard:
        text = f"{'while' if isinstance(statement, ast.While) else 'if'} {ast.unparse(statement.test)}"
        return Guard(statement.lineno, text, branch, _mentions_rank(statement.test, self._tainted))

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> Loop:
        handlers = (node for node in ast.walk(statement) if isinstance(node, ast.ExceptHandler))
        swallows = next((node for node in handlers if not any(isinstance(n, ast.Raise) for n in ast.walk(node))), None)
        header = self._lines[statement.lineno - 1].strip()
        return Loop(statement.lineno, statement.end_lineno or statement.lineno, header, swallows.lineno if swallows else None)

    def _callers(self, function: str) -> tuple[Place, ...]:
        if function == "<module>":
            return ()
        return tuple(Place(self._file, line) for line in sorted(set(self._calls(function)))[:MOST_CALLERS])

    def _calls(self, function: str) -> Iterator[int]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called == function:
                    yield node.lineno


def _blocks(statement: ast.stmt) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield name, block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield "handler", part.body


def _mentions_rank(expression: ast.AST, tainted: frozenset[str]) -> bool:
    for node in ast.walk(expression):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
        if name is not None and (name in tainted or _RANK.search(name)):
            return True
        if isinstance(node, ast.Constant) and node.value in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
            return True
    return False


def _rank_dependent_names(tree: ast.Module) -> frozenset[str]:
    """Variables that were assigned from a rank, directly or through another such variable."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None]
    found: frozenset[str] = frozenset()
    while True:
        grown = set(found)
        for node in assigned:
            if node.value is not None and _mentions_rank(node.value, found):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                grown |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        if grown == found:
            return found
        found = frozenset(grown)
