"""Read the source lines that a verdict cites, with the lines around them, for the incident page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from holdfast.core.findings import Finding, Verdict
from holdfast.core.python_ast import NotPython, read_python
from holdfast.core.rank_sets import fold_findings
from holdfast.report.page_text import clip

MAX_FILES = 2
MAX_ROWS = 36
MAX_NOTE = 90
MAX_CODE = 200
#: Lines shown before and after the line of the root, and around other cited lines.
_AROUND_ROOT = (4, 3)
_AROUND_CITED = (1, 1)
#: Two parts of a file with at most this many lines between them are joined.
_JOINED = 2
_CONDITIONS = ("if ", "elif ", "while ", "for ", "except")
_PLACE = re.compile(r"(.+\.py):(\d+)")
_RANKS = re.compile(r"(?:each of )?(ranks? [\d,…-]+)")


class SourceRow(msgspec.Struct, frozen=True):
    """A source line; ``note`` says what it has to do with the failure, ``root``: it is the cause.

    ``number`` 0 stands for lines that are left out.
    """

    number: int
    code: str = ""
    note: str = ""
    root: bool = False


class SourceWindow(msgspec.Struct, frozen=True):
    """The cited lines of one file and those around them."""

    file: str
    rows: tuple[SourceRow, ...]


def read_windows(verdict: Verdict) -> tuple[SourceWindow, ...]:
    """Return the source that the root, its evidence and its consequences cite, the root's first.

    Only for a verdict about this user's own job: the page then contains lines of local files. Files
    that cannot be read are left out, secrets (``api_key="..."``) are redacted.
    """
    if verdict.root is None or not (verdict.root.subject.file and verdict.root.subject.line):
        return ()
    from holdfast.core.redaction.redact import Redactor  # noqa: PLC0415 - 20 ms in each launcher

    redactor = Redactor(home_folders=False)
    windows = []
    for file, notes in list(_cited_lines(verdict.root, verdict.consequences).items())[:MAX_FILES]:
        try:
            lines = redactor.redact_text(read_python(file)).split("\n")
        except (OSError, NotPython, ValueError, LookupError):
            continue
        root = verdict.root.subject.line if file == verdict.root.subject.file else 0
        shown = {line: redactor.redact_text(notes[line]) for line in notes if line <= len(lines)}
        rows = _rows(lines, shown, root)
        windows += [SourceWindow(file, rows)] if rows else []
    return tuple(windows)


def _cited_lines(root: Finding, consequences: Sequence[Finding]) -> dict[str, dict[int, str]]:
    """Return the notes by file and line; the file of the root comes first."""
    subject = root.subject
    notes: dict[str, dict[int, list[str]]] = {}

    def cite(file: str | None, line: int | None, note: str) -> None:
        if file and line and line > 0 and file.endswith(".py"):
            known = notes.setdefault(file, {}).setdefault(line, [])
            known += [note] if note and note not in known else []

    cite(subject.file, subject.line, "" if subject.rank is None else f"rank {subject.rank}")
    for fact in root.evidence:
        place = _PLACE.fullmatch(fact.origin)
        if place and (place[1], int(place[2])) != (subject.file, subject.line):
            cite(place[1], int(place[2]), _note(fact.text))
    for fold in fold_findings(consequences):
        ranks = _RANKS.match(fold.sentence)
        cite(fold.claim.subject.file, fold.claim.subject.line, ranks[1] if ranks else "")
    return {
        file: {line: clip("; ".join(texts), MAX_NOTE) for line, texts in sorted(lines.items())}
        for file, lines in notes.items()
    }


def _note(text: str) -> str:
    """Return what a fact says about its line, without repeating the line."""
    text = text.removeprefix("lint: ")
    return "condition" if text.startswith(_CONDITIONS) else text


def _rows(lines: Sequence[str], notes: dict[int, str], root: int) -> tuple[SourceRow, ...]:
    shown: set[int] = set()
    # The line of the root first: of very many cited lines, the first ones are shown.
    for line in sorted(notes, key=lambda line: line != root):
        around = _around(lines, line, *(_AROUND_ROOT if line == root else _AROUND_CITED))
        if len(shown | set(around)) <= MAX_ROWS:
            shown |= set(around)
    numbers = _trim(_join(sorted(shown)), lines)
    if not numbers:
        return ()
    code = textwrap.dedent("\n".join(lines[number - 1].expandtabs(4) for number in numbers))
    rows = [
        SourceRow(number, clip(text, MAX_CODE), notes.get(number, ""), number == root)
        for number, text in zip(numbers, code.split("\n"), strict=True)
    ]
    return tuple(_with_gaps(rows))


def _around(lines: Sequence[str], line: int, before: int, after: int) -> range:
    """Return up to that many lines around ``line``, but none beyond two blank lines in a row."""
    first = last = line
    while first > max(1, line - before) and (_text(lines, first - 1) or _text(lines, first - 2)):
        first -= 1
    while last < min(len(lines), line + after) and (
        _text(lines, last + 1) or _text(lines, last + 2)
    ):
        last += 1
    return range(first, last + 1)


def _text(lines: Sequence[str], line: int) -> str:
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def _join(numbers: Sequence[int]) -> list[int]:
    """Add the lines between parts that are nearly adjacent."""
    joined = list(numbers[:1])
    for before, after in pairwise(numbers):
        joined += range(before + 1 if after - before <= _JOINED + 1 else after, after + 1)
    return joined


def _trim(numbers: list[int], lines: Sequence[str]) -> list[int]:
    """Leave out blank lines at both ends."""
    kept = [index for index, number in enumerate(numbers) if lines[number - 1].strip()]
    return numbers[kept[0] : kept[-1] + 1] if kept else []


def _with_gaps(rows: Sequence[SourceRow]) -> Iterable[SourceRow]:
    yield from rows[:1]
    for before, row in pairwise(rows):
        if row.number > before.number + 1:
            yield SourceRow(0)
        yield row
