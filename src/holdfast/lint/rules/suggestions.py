"""Suggest how to change the code of a finding, by its shape, with a diff where lines only move."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence

import msgspec

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.edits import parse_lines
from holdfast.report.source_findings import CodeSuggestion

_MAX_CODE = 60
#: Kinds of operations that all ranks may enter without changing what the guarded ranks do.
_MOVABLE = frozenset({"collective", "sharded", "creation"})
_CONTEXT_LINES = 2


class _GuardedCall(msgspec.Struct, frozen=True):
    """A statement directly in the body of an ``if`` that only some ranks enter."""

    guard: ast.If
    statement: ast.stmt

    @property
    def is_first(self) -> bool:
        """Return True if nothing comes before the statement in the body."""
        return self.guard.body[0] is self.statement

    @property
    def is_last(self) -> bool:
        """Return True if nothing comes after the statement, and no ``else``."""
        return self.guard.body[-1] is self.statement and not self.guard.orelse

    @property
    def code(self) -> str:
        """Return the statement, shortened."""
        text = ast.unparse(self.statement)
        return text if len(text) <= _MAX_CODE else f"{text[: _MAX_CODE - 1]}…"


def suggest_change(divergence: Divergence, lines: Sequence[str]) -> CodeSuggestion | None:
    """Return how to let all ranks make a call that a condition guards; None for other shapes."""
    guard, location = divergence.guard, divergence.location
    if (
        divergence.kind != "branch"
        or divergence.op_kind not in _MOVABLE
        or guard.file != location.file
        or guard.line == location.line
    ):
        return None
    call = _guarded_call(lines, guard.line, location.line)
    if call is None:
        return None
    if call.is_last and isinstance(call.statement, ast.Expr):
        if call.is_first:
            text = f"Let all ranks call `{call.code}`: remove `{divergence.text}`."
        else:
            text = f"Move `{call.code}` behind `{divergence.text}`, so that all ranks call it."
        return _suggestion(text, location.file, lines, _moved_behind(lines, call))
    if call.is_first and not call.guard.orelse:
        text = f"Move `{call.code}` before `{divergence.text}`: all ranks call it."
        return _suggestion(text, location.file, lines, _moved_before(lines, call))
    return CodeSuggestion(
        f"Let all ranks call `{call.code}`: move it, and what computes its arguments, out of "
        f"`{divergence.text}`."
    )


def _guarded_call(lines: Sequence[str], guard: int, line: int) -> _GuardedCall | None:
    tree = parse_lines(lines)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.If) and node.lineno == guard:
            if lines[guard - 1].lstrip().startswith("elif"):
                return None
            for statement in node.body:
                if statement.lineno <= line <= (statement.end_lineno or line):
                    simple = isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign))
                    return _GuardedCall(node, statement) if simple else None
    return None


def _moved_behind(lines: Sequence[str], call: _GuardedCall) -> list[str]:
    """Return the lines with the last statement of the body behind the ``if``."""
    begin, end = call.statement.lineno - 1, call.statement.end_lineno or call.statement.lineno
    kept = lines[: call.guard.lineno - 1] if call.is_first else lines[:begin]
    return [*kept, *_dedented(lines, call), *lines[end:]]


def _moved_before(lines: Sequence[str], call: _GuardedCall) -> list[str]:
    """Return the lines with the first statement of the body before the ``if``."""
    at = call.guard.lineno - 1
    begin, end = call.statement.lineno - 1, call.statement.end_lineno or call.statement.lineno
    rest = [*lines[at:begin], *lines[end:]]
    if len(call.guard.body) == 1:
        rest.insert(begin - at, " " * call.statement.col_offset + "pass")
    return [*lines[:at], *_dedented(lines, call), *rest]


def _dedented(lines: Sequence[str], call: _GuardedCall) -> list[str]:
    surplus = call.statement.col_offset - call.guard.col_offset
    begin, end = call.statement.lineno - 1, call.statement.end_lineno or call.statement.lineno
    return [line[surplus:] if line[:surplus].isspace() else line for line in lines[begin:end]]


def _suggestion(
    text: str, file: str, before: Sequence[str], after: Sequence[str]
) -> CodeSuggestion:
    """Return the suggestion, without a diff if the result would not be valid Python."""
    if parse_lines(after) is None:
        return CodeSuggestion(text)
    # no empty line after the last
    old, new = ("\n".join(lines).splitlines() for lines in (before, after))
    diff = difflib.unified_diff(old, new, file, file, n=_CONTEXT_LINES, lineterm="")
    return CodeSuggestion(text, tuple(diff))
