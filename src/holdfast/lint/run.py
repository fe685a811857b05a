"""Lint a program: read and analyze its files, then select findings and apply suppressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from holdfast.core.findings import Level
from holdfast.lint.analysis import OnProgress, RuleFinding, analyze_files
from holdfast.lint.options import ALL_RULES, LintOptions
from holdfast.lint.sources import files as sources_files
from holdfast.lint.sources.files import SkippedSource
from holdfast.lint.sources.named_paths import check_named_paths


class LintResult(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, the numbers of linted files, lines and suppressed findings, and skipped files.

    ``named_path_skipped``: a path that was named explicitly, and is not excluded, was not linted,
    or the linter failed on a program.
    """

    findings: tuple[RuleFinding, ...]
    files: int
    lines: int
    suppressed: int
    skipped: tuple[SkippedSource, ...]
    named_path_skipped: bool = False

    @property
    def exit_status(self) -> int:
        """Return 1 for findings above advice, else 2 if a named file was not linted, else 0."""
        levels = {reported.finding.level for reported in self.findings}
        if levels & {Level.ERROR, Level.WARNING}:
            return 1
        return 2 if self.named_path_skipped else 0

    @property
    def source(self) -> dict[str, str]:
        """Return the cited source lines, by location."""
        return {
            location: line
            for reported in self.findings
            for location, line in reported.source.items()
        }

    @property
    def fixable(self) -> int:
        """Return the number of findings that offer a fix."""
        return sum(reported.edit is not None for reported in self.findings)


def lint_paths(
    paths: Sequence[Path],
    options: LintOptions = ALL_RULES,
    unsaved: Mapping[Path, bytes] = MappingProxyType({}),
    cache: Path | None = None,
    *,
    on_read: Callable[[int, int, str], None] | None = None,
    on_progress: OnProgress | None = None,
) -> LintResult:
    """Lint all Python files of ``paths`` as one program; ``unsaved`` holds an editor's buffers.

    The folder ``cache`` holds results for unchanged files. ``on_read`` gets the number of files and
    bytes read and the current file, ``on_progress`` the progress of the analysis.

    Raises:
      MissingFile: one of ``paths`` does not exist or cannot be read.
      UnknownName: the options name an unknown rule or code.
    """
    named = [path for path in paths if not options.is_excluded(path)]
    check_named_paths(path for path in named if path not in unsaved)
    if options.rule_names:
        options.rules()
    gathered = sources_files.gather_files(paths, options.is_excluded, unsaved, on_read)
    analysis = analyze_files(
        gathered.files,
        None if unsaved else cache,
        strict=options.strict,
        on_progress=on_progress,
    )
    chosen = {rule.name: rule for rule in options.rules()} if analysis.findings else {}
    matching = [
        (reported, suppressed)
        for reported, suppressed in analysis.findings
        if reported.rule in chosen
        and not options.ignores_in_file(chosen[reported.rule], reported.finding.subject.file or "")
    ]
    named_paths = set(map(str, named))
    skipped = (*gathered.skipped, *analysis.skipped)
    return LintResult(
        findings=_most_severe(reported for reported, suppressed in matching if not suppressed),
        files=analysis.files,
        lines=analysis.lines,
        suppressed=sum(suppressed for _, suppressed in matching),
        skipped=skipped,
        named_path_skipped=any(
            skipped_file.is_failure or skipped_file.file in named_paths for skipped_file in skipped
        ),
    )


def _most_severe(findings: Iterable[RuleFinding]) -> tuple[RuleFinding, ...]:
    """Return the first finding of each line, which is the most severe selected one."""
    first: dict[tuple[str | None, int | None], RuleFinding] = {}
    for reported in findings:
        subject = reported.finding.subject
        first.setdefault((subject.file, subject.line), reported)
    return tuple(first.values())
