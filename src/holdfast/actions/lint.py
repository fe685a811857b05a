"""Lints a program: reads its files, runs them once for all ranks, judges where ranks part, heeds what was excused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from holdfast.actions import lint_cache
from holdfast.actions.lint_options import ALL, Options
from holdfast.facts.code import cells, notebooks, reading
from holdfast.facts.code.programs import Program
from holdfast.facts.code.reading import Gathered, PassedOver
from holdfast.findings import Finding, Level
from holdfast.rules.code.catalogue import judge
from holdfast.rules.code.edits import Edit

#: Codes, or names of rules, by comma; a reason may follow them.
_NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[a-z][a-z0-9-]*(?:\s*,\s*[a-z][a-z0-9-]*)*)?", re.IGNORECASE)


class Claim(msgspec.Struct, frozen=True):
    """One finding, the name of the rule that made it, and the edit that it offers."""

    rule: str
    finding: Finding
    edit: Edit | None = None


class Linted(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in so many ``files`` and ``lines``, what was excused by comments, and what was passed over.

    ``unread``: among what was passed over is a path that was asked for by name, and not excluded.
    """

    claims: tuple[Claim, ...]
    files: int
    lines: int
    excused: int
    passed: tuple[PassedOver, ...]
    unread: bool = False

    @property
    def exit_status(self) -> int:
        """1 where something is worse than advice, else 2 where a file that was asked for could not be read."""
        if any(claim.finding.level in (Level.ERROR, Level.WARNING) for claim in self.claims):
            return 1
        return 2 if self.unread else 0


class Judged(msgspec.Struct, frozen=True):
    """What all rules make of a program; a claim comes with whether a comment excuses it."""

    claims: tuple[tuple[Claim, bool], ...]
    files: int
    lines: int
    passed: tuple[PassedOver, ...]


def lint(
    paths: Sequence[Path],
    options: Options = ALL,
    unsaved: Mapping[Path, bytes] = MappingProxyType({}),
    cache: Path | None = None,
) -> Linted:
    """Lint all Python files of ``paths`` as one program; ``unsaved`` is what an editor holds of a file.

    In the folder ``cache`` is kept what was found, for the next time that nothing has changed.

    Raises:
        UnknownName: there is no such rule or code as the options name.
    """
    chosen = {rule.name: rule for rule in options.rules()}
    gathered = reading.gather(paths, options.left_out, unsaved)
    judged = _judged(gathered, None if unsaved else cache, strict=options.strict)
    found = [
        (claim, excused)
        for claim, excused in judged.claims
        if claim.rule in chosen and not options.excuses(chosen[claim.rule], claim.finding.subject.file or "")
    ]
    asked = {str(path) for path in paths if not options.left_out(path)}
    passed = (*gathered.passed, *judged.passed)
    return Linted(
        claims=tuple(claim for claim, excused in found if not excused),
        files=judged.files,
        lines=judged.lines,
        excused=sum(excused for _, excused in found),
        passed=passed,
        unread=any(each.file in asked for each in passed),
    )


def _judged(gathered: Gathered, cache: Path | None, *, strict: bool) -> Judged:
    name = lint_cache.key(gathered) + "-strict" * strict if cache is not None else ""
    found = lint_cache.load(cache, name, Judged) if cache is not None else None
    if found is None:
        found = judged(gathered, strict=strict)
        if cache is not None:
            lint_cache.save(cache, name, found)
    return found


def judged(gathered: Gathered, *, strict: bool = False) -> Judged:
    """What all rules make of the program of these files."""
    sources = reading.parse(gathered)
    with reading.without_collector():
        partings = Program(sources.modules, strict=strict).look()
    texts = {module.file: module.lines for module in sources.modules.values()}
    books = {module.file: module.notebook for module in sources.modules.values() if module.notebook is not None}
    if books:
        partings = [cells.told(each, books) for each in partings]
        for file, book in books.items():
            texts |= notebooks.texts(file, book)
    claims = [
        Claim(rule.name, claim, rule.mends(parting, texts.get(parting.place.file, ())))
        for rule, parting, claim in judge(partings)
    ]
    return Judged(
        claims=tuple((claim, _excused(texts, claim)) for claim in claims),
        files=len(sources.modules),
        lines=sources.lines,
        passed=sources.passed[len(gathered.passed) :],
    )


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
