"""Notebooks as programs: all code cells concatenated, with the cell of each line."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

#: Notebooks contain images and may be larger than programs.
MOST_BYTES = 64 << 20
#: Cell magics whose cell is still Python.
#: https://ipython.readthedocs.io/en/stable/interactive/magics.html#cell-magics
_PYTHON_MAGICS = frozenset({"time", "timeit", "capture", "prun"})
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
#: ``%magic``, ``!command`` and ``?name``, alone or assigned to a name.
_MAGIC = re.compile(r"^(?P<indent>[ \t]*)(?P<names>\w[\w.,* \t]*=[ \t]*)?(?:%[A-Za-z]|!|\?)")
_HELP = re.compile(r"^[ \t]*[\w.*]+\?{1,2}[ \t]*$")


class Notebook(msgspec.Struct, frozen=True):
    """The text of all code cells; ``starts`` are their first lines, ``cells`` their numbers from 1.

    Markdown cells count, as in ruff. ``broken`` cells are not valid Python; their lines are empty.
    """

    text: str
    starts: tuple[int, ...]
    cells: tuple[int, ...]
    broken: tuple[tuple[int, str], ...]

    def cell_of_line(self, line: int) -> tuple[int, int]:
        """Return the cell of a line of the text, and the line within the cell."""
        at = max(0, bisect_right(self.starts, line) - 1)
        return self.cells[at], line - self.starts[at] + 1

    def line_of_cell(self, cell: str, line: int) -> int:
        """Return the line of the text for a line of ``cell 3``."""
        return self.starts[self.cells.index(int(cell.removeprefix("cell ")))] + line - 1


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: str | list[str] = ""
    input: str | list[str] = ""

    @property
    def text(self) -> str:
        """Return the source, in either format."""
        source = self.source or self.input
        return source if isinstance(source, str) else "".join(source)


class _Worksheet(msgspec.Struct):
    cells: list[_Cell] = []


class _Language(msgspec.Struct):
    name: str = ""
    language: str = ""


class _NotebookMetadata(msgspec.Struct, frozen=True):
    language_info: _Language | None = None
    kernelspec: _Language | None = None


class _Document(msgspec.Struct):
    """Format 4 has ``cells``, format 3 ``worksheets``: https://nbformat.readthedocs.io."""

    cells: list[_Cell] | None = None
    worksheets: list[_Worksheet] = []
    metadata: _NotebookMetadata = _NotebookMetadata()


def parse_notebook(content: bytes, most: int) -> Notebook:
    """Parse a notebook.

    Raises:
      ValueError: not a Python notebook, or more than ``most`` characters of code.
      RecursionError: it is nested too deeply.
    """
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a valid notebook: {error}") from None
    info, kernel = document.metadata.language_info, document.metadata.kernelspec
    language = (info.name if info else "") or (kernel.language if kernel else "")
    if language and not language.lower().startswith(("python", "ipython")):
        raise ValueError(f"not a Python notebook (language {language[:40]!r})")
    if document.cells is None and not document.worksheets:
        raise ValueError("not a valid notebook: no cells")
    cells = [
        *(document.cells or ()),
        *(cell for sheet in document.worksheets for cell in sheet.cells),
    ]
    if sum(len(cell.text) for cell in cells) > most:
        raise ValueError(f"more than {most >> 20} MiB of code")
    return _join_cells(cells)


def _join_cells(cells: list[_Cell]) -> Notebook:
    lines: list[str] = []
    starts, numbers, broken = [], [], []
    for number, cell in enumerate(cells, 1):
        if cell.cell_type != "code":
            continue
        starts.append(len(lines) + 1)
        numbers.append(number)
        text = cell.text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", " ")
        cell_lines = text.split("\n")
        problem = _syntax_problem(cell_lines)
        if problem:
            cell_lines = _strip_magics(cell_lines)
            problem = _syntax_problem(cell_lines)
        if problem:
            broken.append((number, problem))
            cell_lines = [""] * len(cell_lines)
        lines += cell_lines
    if not starts:
        return Notebook("", (1,), (1,), ())
    return Notebook("\n".join(lines), tuple(starts), tuple(numbers), tuple(broken))


def _syntax_problem(lines: list[str]) -> str:
    """Return the syntax error of these lines; empty if they are valid."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return f"line {error.lineno or 0}: SyntaxError: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or "nested too deeply"
    return ""


def _strip_magics(lines: list[str]) -> list[str]:
    """Replace IPython syntax in a cell; the number of lines stays the same."""
    first = next((line for line in lines if line.strip()), "")
    magic = _CELL_MAGIC.match(first)
    if magic and magic[1] not in _PYTHON_MAGICS:
        return [""] * len(lines)
    stripped = []
    is_continued = False
    for line in lines:
        magic_match = _MAGIC.match(line)
        if is_continued:
            is_continued = line.rstrip().endswith("\\")
            stripped.append("")
        elif magic_match or _HELP.match(line):
            is_continued = line.rstrip().endswith("\\")
            names = magic_match["names"] if magic_match else None
            indent = line[: len(line) - len(line.lstrip())]
            stripped.append(f"{indent}{names}get_ipython()" if names else f"{indent}pass")
        elif magic and line is first:
            stripped.append("")
        else:
            stripped.append(line)
    return stripped


def iter_cell_lines(file: str, notebook: Notebook) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of each cell, by the name that findings use."""
    lines = notebook.text.split("\n")
    for at, start in enumerate(notebook.starts):
        end = notebook.starts[at + 1] - 1 if at + 1 < len(notebook.starts) else len(lines)
        yield f"{file}:cell {notebook.cells[at]}", lines[start - 1 : end]
