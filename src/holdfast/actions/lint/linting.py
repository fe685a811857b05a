"""Lints a program: reads its files, runs them once for all ranks, judges where ranks part, heeds what was excused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from holdfast.actions.lint.judging import Claim, judged
from holdfast.actions.lint.options import ALL, Options
from holdfast.facts.code import reading
from holdfast.facts.code.reading import PassedOver
from holdfast.findings import Level


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

    @property
    def source(self) -> dict[str, str]:
        """The lines of code that the claims speak of, by their places."""
        return {place: line for claim in self.claims for place, line in claim.source.items()}

    @property
    def mendable(self) -> int:
        """How many claims offer an edit."""
        return sum(claim.edit is not None for claim in self.claims)


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
    if options.names:
        options.rules()
    gathered = reading.gather(paths, options.left_out, unsaved)
    made = judged(gathered.files, None if unsaved else cache, strict=options.strict)
    chosen = {rule.name: rule for rule in options.rules()} if made.claims else {}
    found = [
        (claim, excused)
        for claim, excused in made.claims
        if claim.rule in chosen and not options.excuses(chosen[claim.rule], claim.finding.subject.file or "")
    ]
    asked = {str(path) for path in paths if not options.left_out(path)}
    passed = (*gathered.passed, *made.passed)
    return Linted(
        claims=_gravest(claim for claim, excused in found if not excused),
        files=made.files,
        lines=made.lines,
        excused=sum(excused for _, excused in found),
        passed=passed,
        unread=any(each.file in asked for each in passed),
    )


def _gravest(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Of one line the first, which is the gravest of those that are to be heard."""
    first: dict[tuple[str | None, int | None], Claim] = {}
    for claim in claims:
        subject = claim.finding.subject
        first.setdefault((subject.file, subject.line), claim)
    return tuple(first.values())
