"""What all rules make of a program: each component of files by itself, several at once, and kept until it changes."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.actions.lint import cache as lint_cache
from holdfast.facts.code import notebooks, reading
from holdfast.facts.code.components import components, is_loud
from holdfast.facts.code.reading import File, PassedOver, Sources
from holdfast.facts.collector import without_collector
from holdfast.findings import Finding
from holdfast.report import lint as report
from holdfast.rules.code.edits import Edit

if TYPE_CHECKING:
    from holdfast.facts.code.partings import Parting

#: Codes, or names of rules, by comma; a reason may follow them.
_NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[a-z][a-z0-9-]*(?:\s*,\s*[a-z][a-z0-9-]*)*)?", re.IGNORECASE)
#: So many bytes of quiet files are one piece of work; so much work is worth processes, and so much to be kept.
_PIECE, _WORTH_PROCESSES, _WORTH_KEEPING = 1 << 20, 1 << 21, 1 << 17
_MOST_PROCESSES = 16
#: Of a line of code so much is kept.
_LONGEST = 200


class Claim(msgspec.Struct, frozen=True):
    """One finding, the name of the rule that made it, the edit that it offers, and its lines of code by their place."""

    rule: str
    finding: Finding
    edit: Edit | None = None
    source: dict[str, str] = {}


class Judged(msgspec.Struct, frozen=True):
    """What all rules make of a program; a claim comes with whether a comment excuses it."""

    claims: tuple[tuple[Claim, bool], ...]
    files: int
    lines: int
    passed: tuple[PassedOver, ...]


class _Work(msgspec.Struct, frozen=True):
    """Files that are judged together; of ``quiet`` ones it is only seen whether they are Python."""

    files: tuple[File, ...]
    quiet: bool
    strict: bool

    @property
    def cost(self) -> int:
        """Bytes; what is run costs some ten times what is only read."""
        return sum(len(file.content) for file in self.files) * (1 if self.quiet else 10)


def judged(files: Sequence[File], cache: Path | None = None, *, strict: bool = False) -> Judged:
    """What all rules make of the program of these files.

    In the folder ``cache`` is kept what was found, of the whole and of each large component.
    """
    if cache is None:
        return _together(files, _run(_parted(files, strict=strict)))
    name = lint_cache.key(files, strict=strict)
    found = lint_cache.load(cache, name, Judged)
    if found is None:
        found = _together(files, _run_or_found(_parted(files, strict=strict), cache))
        lint_cache.save(cache, name, found)
    return found


def _parted(files: Sequence[File], *, strict: bool) -> list[_Work]:
    """Components in which something speaks of collectives, and all other files in pieces; the costly ones first."""
    work = []
    piece: list[File] = []
    size = 0
    for part in components(files):
        if is_loud(part):
            work.append(_Work(tuple(part), quiet=False, strict=strict))
            continue
        for file in part:
            piece.append(file)
            size += len(file.content)
            if size > _PIECE:
                work.append(_Work(tuple(piece), quiet=True, strict=strict))
                piece, size = [], 0
    if piece:
        work.append(_Work(tuple(piece), quiet=True, strict=strict))
    return sorted(work, key=lambda each: -each.cost)


def _run_or_found(work: Sequence[_Work], cache: Path) -> list[Judged]:
    """As :func:`_run`, of what was not kept."""
    names = [lint_cache.key(each.files, strict=each.strict) if each.cost > _WORTH_KEEPING else "" for each in work]
    found = [lint_cache.load(cache, name, Judged) if name else None for name in names]
    made = iter(_run([each for each, kept in zip(work, found, strict=True) if kept is None]))
    done = []
    for name, kept in zip(names, found, strict=True):
        one = kept if kept is not None else next(made)
        if kept is None and name and len(work) > 1:
            lint_cache.save(cache, name, one)
        done.append(one)
    return done


def _run(work: Sequence[_Work]) -> list[Judged]:
    """Each piece of work, in processes of their own where there is much of it."""
    count = min(len(os.sched_getaffinity(0)), len(work), _MOST_PROCESSES) if sys.platform == "linux" else 1
    if count > 1 and sum(each.cost for each in work) > _WORTH_PROCESSES and threading.active_count() == 1:
        return _at_once(work, count)
    return [_judged(each) for each in work]


def _at_once(work: Sequence[_Work], count: int) -> list[Judged]:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - thirty modules, of no use for one file
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    try:
        with ProcessPoolExecutor(count, get_context("fork")) as pool:
            return list(pool.map(_judged, work))
    except BrokenProcessPool:  # one of them was killed, for its memory most likely: one after the other
        return [_judged(each) for each in work]


def _judged(work: _Work) -> Judged:
    with without_collector():
        if work.quiet:
            checked = reading.check(work.files)
            return Judged((), checked.files, checked.lines, checked.passed)
        return _of_component(work)


def _of_component(work: _Work) -> Judged:
    from holdfast.facts.code.programs import Program  # noqa: PLC0415 - what is silent, or was kept, needs none

    sources = reading.parse(work.files)
    partings = Program(sources.modules, strict=work.strict).look()
    claims = _claims(sources, partings) if partings else ()
    done = Judged(claims, len(sources.modules), sources.lines, sources.passed)
    sources.take_apart()
    return done


def _claims(sources: Sources, partings: Iterable[Parting]) -> tuple[tuple[Claim, bool], ...]:
    from holdfast.facts.code import cells  # noqa: PLC0415
    from holdfast.rules.code.catalogue import judge  # noqa: PLC0415 - all rules and causes: where ranks part

    texts = {module.file: module.lines for module in sources.modules.values()}
    books = {module.file: module.notebook for module in sources.modules.values() if module.notebook is not None}
    if books:
        partings = [cells.told(each, books) for each in partings]
        for file, book in books.items():
            texts |= notebooks.texts(file, book)
    claims = [
        Claim(rule.name, claim, rule.mends(parting, texts.get(parting.place.file, ())), _source(texts, claim))
        for rule, parting, claim in judge(partings)
    ]
    return tuple((claim, _excused(texts, claim)) for claim in claims)


def _together(files: Sequence[File], parts: Iterable[Judged]) -> Judged:
    """In the order of the files, and of their lines; of one line the gravest stays first."""
    parts = list(parts)
    order = {str(file.path): at for at, file in enumerate(files)}

    def place(claim: tuple[Claim, bool]) -> tuple[str, int, int]:
        subject = claim[0].finding.subject
        return report.order(subject.file or "", subject.line)

    return Judged(
        tuple(sorted(chain.from_iterable(part.claims for part in parts), key=place)),
        sum(part.files for part in parts),
        sum(part.lines for part in parts),
        tuple(sorted(chain.from_iterable(part.passed for part in parts), key=lambda each: order.get(each.file, 0))),
    )


def _source(texts: Mapping[str, Sequence[str]], claim: Finding) -> dict[str, str]:
    """The lines of code that a finding speaks of."""
    own = report.at(claim.subject.file or "", claim.subject.line)
    found = {}
    for origin in (own, *(fact.origin for fact in claim.evidence)):
        file, line = report.placed(origin)
        lines = texts.get(file, ())
        if 0 < line <= len(lines):
            found[origin] = lines[line - 1].strip()[:_LONGEST]
    return found


def _excused(texts: Mapping[str, Sequence[str]], claim: Claim) -> bool:
    """A comment ``# noqa`` or ``# noqa: SYNC004`` (a code, or a rule's name) on the line."""
    subject = claim.finding.subject
    lines = texts.get(subject.file or "", ())
    if not subject.line or subject.line > len(lines):
        return False
    found = _NOQA.search(lines[subject.line - 1])
    if found is None:
        return False
    codes = {word.strip().lower() for word in (found["codes"] or "").lstrip(": ").split(",") if word.strip()}
    return not codes or bool(codes & {claim.rule, claim.finding.cause, claim.finding.code.lower()})
