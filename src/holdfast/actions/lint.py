"""Lints a program: reads its files, runs them once for all ranks, judges where ranks part, heeds what was excused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UnknownName
from holdfast.facts.code import notebooks, reading
from holdfast.facts.code.programs import Program
from holdfast.facts.code.reading import PassedOver
from holdfast.findings import Finding, Level
from holdfast.rules.code.catalogue import RULES, judge
from holdfast.rules.code.rule import Rule

_NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[A-Za-z0-9, -]+)?", re.IGNORECASE)


class Claim(msgspec.Struct, frozen=True):
    """One finding, and the name of the rule that made it."""

    rule: str
    finding: Finding


class Linted(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in so many ``files`` and ``lines``, what was excused by comments, and what was passed over."""

    claims: tuple[Claim, ...]
    files: int
    lines: int
    excused: int
    passed: tuple[PassedOver, ...]

    @property
    def exit_status(self) -> int:
        """1 where something is worse than advice."""
        return int(any(claim.finding.level in (Level.ERROR, Level.WARNING) for claim in self.claims))


def lint(paths: Sequence[Path], select: Collection[str] = (), ignore: Collection[str] = ()) -> Linted:
    """Lint all Python files of ``paths`` as one program.

    ``select`` and ``ignore`` are names of rules, codes of causes or beginnings of codes (``SYNC``).

    Raises:
        UnknownName: there is no such rule or code.
    """
    chosen = _chosen(select, ignore)
    sources = reading.read(paths)
    partings = Program(sources.modules).look()
    texts = {module.file: module.lines for module in sources.modules.values()}
    books = {module.file: module.notebook for module in sources.modules.values() if module.notebook is not None}
    if books:
        partings = [notebooks.told(each, books) for each in partings]
        for file, book in books.items():
            texts |= notebooks.texts(file, book)
    found = [Claim(rule.name, claim) for rule, claim in judge(partings) if rule in chosen]
    claims = [each for each in found if not _excused(texts, each)]
    return Linted(
        claims=tuple(claims),
        files=len(sources.modules),
        lines=sources.lines,
        excused=len(found) - len(claims),
        passed=sources.passed,
    )


def _chosen(select: Collection[str], ignore: Collection[str]) -> list[Rule]:
    for word in (*select, *ignore):
        if not any(_means(word, rule) for rule in RULES):
            raise UnknownName("rule", word, sorted({rule.name for rule in RULES} | {rule.cause.code for rule in RULES}))
    return [
        rule
        for rule in RULES
        if (not select or any(_means(word, rule) for word in select)) and not any(_means(word, rule) for word in ignore)
    ]


def _means(word: str, rule: Rule) -> bool:
    return word.lower() in (rule.name, rule.cause.name) or (word != "" and rule.cause.code.startswith(word.upper()))


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
