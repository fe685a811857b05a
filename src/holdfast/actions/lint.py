"""Lints a program: reads its files, runs them once for all ranks, judges where ranks part, heeds what was excused."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UnknownName
from holdfast.facts.code import reading
from holdfast.facts.code.modules import Module
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
    found = [Claim(rule.name, claim) for rule, claim in judge(Program(sources.modules).look()) if rule in chosen]
    by_file = {module.file: module for module in sources.modules.values()}
    claims = [each for each in found if not _excused(by_file, each)]
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


def _excused(modules: dict[str, Module], claim: Claim) -> bool:
    """A comment ``# noqa`` or ``# noqa: SYNC004`` (a code, or a rule's name) on the line."""
    subject = claim.finding.subject
    module = modules.get(subject.file or "")
    if module is None or not subject.line or subject.line > len(module.lines):
        return False
    found = _NOQA.search(module.lines[subject.line - 1])
    if found is None:
        return False
    codes = {word.strip().lower() for word in (found["codes"] or "").lstrip(": ").split(",") if word.strip()}
    return not codes or bool(codes & {claim.rule, claim.finding.cause, claim.finding.code.lower()})
