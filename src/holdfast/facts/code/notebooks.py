"""Notebooks as programs: the cells of code one after the other, and in which cell each line stands."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

#: Pictures stand in notebooks too, so that they may be larger than a program.
MOST_BYTES = 64 << 20
#: Cell magics whose cell is still Python; others hand it to another program.
#: https://ipython.readthedocs.io/en/stable/interactive/magics.html#cell-magics
_PYTHON_MAGICS = frozenset({"time", "timeit", "capture", "prun"})
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
#: ``%magic``, ``!command`` and ``?name`` for themselves, or as what a name is given.
_MAGIC = re.compile(r"^(?P<indent>[ \t]*)(?P<names>\w[\w.,* \t]*=[ \t]*)?(?:%[A-Za-z]|!|\?)")
_HELP = re.compile(r"^[ \t]*[\w.*]+\?{1,2}[ \t]*$")


class Notebook(msgspec.Struct, frozen=True):
    """The text of all cells of code; ``starts`` are their first lines and ``cells`` their numbers, from 1.

    Cells of words count too, as they do in ruff. ``broken`` are those that are no Python 3: their lines are empty.
    """

    text: str
    starts: tuple[int, ...]
    cells: tuple[int, ...]
    broken: tuple[tuple[int, str], ...]

    def place(self, line: int) -> tuple[int, int]:
        """The cell of a line of the text, and which line of the cell it is."""
        at = max(0, bisect_right(self.starts, line) - 1)
        return self.cells[at], line - self.starts[at] + 1


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: str | list[str] = ""
    input: str | list[str] = ""

    @property
    def text(self) -> str:
        """What it holds, whichever way it is kept."""
        source = self.source or self.input
        return source if isinstance(source, str) else "".join(source)


class _Sheet(msgspec.Struct):
    cells: list[_Cell] = []


class _Named(msgspec.Struct):
    name: str = ""
    language: str = ""


class _About(msgspec.Struct, frozen=True):
    language_info: _Named | None = None
    kernelspec: _Named | None = None


class _Document(msgspec.Struct):
    """Form 4 has ``cells``, form 3 has them in ``worksheets``: https://nbformat.readthedocs.io."""

    cells: list[_Cell] | None = None
    worksheets: list[_Sheet] = []
    metadata: _About = _About()


def parse(content: bytes, most: int) -> Notebook:
    """The program of a notebook.

    Raises:
        ValueError: it is no notebook, one of another language, or has more than ``most`` characters of code.
        RecursionError: it is nested too deeply.
    """
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.MsgspecError as error:
        raise ValueError(f"it is no notebook: {error}") from None
    info, kernel = document.metadata.language_info, document.metadata.kernelspec
    language = (info.name if info else "") or (kernel.language if kernel else "")
    if language and not language.lower().startswith(("python", "ipython")):
        raise ValueError(f"it is a notebook of {language[:40]!r}")
    if document.cells is None and not document.worksheets:
        raise ValueError("it is no notebook: it has no cells")
    cells = [*(document.cells or ()), *(each for sheet in document.worksheets for each in sheet.cells)]
    if sum(len(each.text) for each in cells) > most:
        raise ValueError(f"its cells have more than {most >> 20} MiB, which is no program")
    return _joined(cells)


def _joined(cells: list[_Cell]) -> Notebook:
    lines: list[str] = []
    starts, numbers, broken = [], [], []
    for number, cell in enumerate(cells, 1):
        if cell.cell_type != "code":
            continue
        starts.append(len(lines) + 1)
        numbers.append(number)
        text = cell.text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", " ")
        own = text.split("\n")
        why = _wrong(own)
        if why:
            own = _python(own)
            why = _wrong(own)
        if why:
            broken.append((number, why))
            own = [""] * len(own)
        lines += own
    if not starts:
        return Notebook("", (1,), (1,), ())
    return Notebook("\n".join(lines), tuple(starts), tuple(numbers), tuple(broken))


def _wrong(lines: list[str]) -> str:
    """Why these lines are no Python 3; empty where they are."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return f"line {error.lineno or 0} is no Python 3: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or "it is nested too deeply"
    return ""


def _python(lines: list[str]) -> list[str]:
    """The lines of a cell without what IPython alone understands; there are as many afterwards."""
    first = next((line for line in lines if line.strip()), "")
    magic = _CELL_MAGIC.match(first)
    if magic and magic[1] not in _PYTHON_MAGICS:
        return [""] * len(lines)
    left = []
    goes_on = False
    for line in lines:
        found = _MAGIC.match(line)
        if goes_on:
            goes_on = line.rstrip().endswith("\\")
            left.append("")
        elif found or _HELP.match(line):
            goes_on = line.rstrip().endswith("\\")
            names = found["names"] if found else None
            indent = line[: len(line) - len(line.lstrip())]
            left.append(f"{indent}{names}get_ipython()" if names else f"{indent}pass")
        elif magic and line is first:
            left.append("")
        else:
            left.append(line)
    return left


def texts(file: str, notebook: Notebook) -> Iterator[tuple[str, list[str]]]:
    """The lines of each cell, by the name that findings give it."""
    lines = notebook.text.split("\n")
    for at, start in enumerate(notebook.starts):
        end = notebook.starts[at + 1] - 1 if at + 1 < len(notebook.starts) else len(lines)
        yield f"{file}:cell {notebook.cells[at]}", lines[start - 1 : end]
