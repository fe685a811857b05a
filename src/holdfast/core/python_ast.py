"""Parses Python source within limits, and the parts of syntax trees that several analyses need.

Source is parsed, never executed.
"""

from __future__ import annotations

import ast
import io
import stat
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
#: Larger files are no programs.
MAX_BYTES = 4 << 20


class NotPython(ValueError):
    """Text that this version of Python cannot parse; the message contains the line if known."""


def parse_python(text: str) -> ast.Module:
    """Parse a program without printing its SyntaxWarnings. Raises NotPython."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        raise NotPython(f"not valid Python{line}") from error


def read_python(file: str) -> str:
    """Read a source file in its declared encoding. Raises OSError or NotPython."""
    status = Path(file).stat()
    if not stat.S_ISREG(status.st_mode):
        raise NotPython("not a regular file")
    if status.st_size > MAX_BYTES:
        raise NotPython(f"larger than {MAX_BYTES >> 20} MiB")
    content = Path(file).read_bytes()[:MAX_BYTES]
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        raise NotPython(f"not valid Python: {error}") from error
    return io.StringIO(content.decode(encoding, errors="replace"), newline=None).read()


def last_name(node: ast.AST | None) -> str:
    """Return ``get`` for ``os.environ.get`` and ``x`` for ``x``; empty for other expressions."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def dotted_name(node: ast.AST) -> str:
    """Return ``os.environ.get`` as written; empty unless it is a name or an attribute."""
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def constant_text(node: ast.expr) -> str | None:
    """Return the text of a constant, or of ``str(constant)``; None for a computed value."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=str() | int() as value):
            return str(value)
        case ast.Call(func=ast.Name(id="str"), args=[argument]):
            return constant_text(argument)
    return None


def statement_blocks(statement: ast.stmt) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """Yield the blocks of a statement: ``body``, ``orelse``, ``finalbody``, then ``handler``.

    The cases of a match statement are ``body``.
    """
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield name, block
    for handler in getattr(statement, "handlers", ()):
        yield "handler", handler.body
    for case in getattr(statement, "cases", ()):
        yield "body", case.body


def last_line(statement: ast.stmt) -> int:
    """Return the last line of a statement."""
    return statement.end_lineno or statement.lineno
