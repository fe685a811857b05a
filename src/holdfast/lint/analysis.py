"""Apply all rules to a program: component by component, in parallel, with cached results."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.findings import Finding
from holdfast.core.gc_pause import gc_paused
from holdfast.core.text import pluralize
from holdfast.lint import cache as lint_cache
from holdfast.lint.rules.edits import Edit
from holdfast.lint.sources import files as sources_files
from holdfast.lint.sources import notebooks
from holdfast.lint.sources.components import mentions_collectives
from holdfast.lint.sources.files import ParsedSources, SkippedSource, SourceFile
from holdfast.lint.sources.separate_programs import ProgramFiles, split_programs, whole_program
from holdfast.report import source_findings as report

# the interpreter and the rules are imported in functions: a cached result needs neither (0.2 s)
if TYPE_CHECKING:
    from holdfast.lint.abstract_domain.divergences import Divergence

#: Codes or rule names, separated by commas; a reason may follow.
_SUPPRESSION = re.compile(
    r"#\s*noqa(?P<codes>:\s*[a-z][a-z0-9-]*(?:\s*,\s*[a-z][a-z0-9-]*)*)?", re.IGNORECASE
)
#: Bytes of files without collectives in one task; total cost from which to use several processes;
#: cost of a task from which to cache its result.
_CHUNK_BYTES, _MIN_PARALLEL_COST, _MIN_CACHED_COST = 1 << 18, 1 << 21, 1 << 17
_MAX_PROCESSES = 16
#: Interval between progress reports.
_PROGRESS_INTERVAL_S = 0.2
#: Rules about files that are right only in a program that runs on several ranks.
_RULES_OF_SCRIPTS = frozenset({
    "path-race", "written-by-all-ranks", "download-by-all-ranks", "fs-race", "name-by-process-hash",
})  # fmt: skip
#: Maximum number of characters kept of a cited source line.
_MAX_SOURCE_LINE = 200


#: Reports the number of files, and the cost done and in total.
OnProgress = Callable[[int, int, int], None]


class RuleFinding(report.SourceFinding, frozen=True):
    """A finding with its rule's name, the fix it offers, and the cited source lines by location."""

    edit: Edit | None = None
    source: dict[str, str] = msgspec.field(default_factory=dict)


class AnalysisResult(msgspec.Struct, frozen=True):
    """The findings of all rules for a program, each with whether a comment suppresses it."""

    findings: tuple[tuple[RuleFinding, bool], ...]
    files: int
    lines: int
    skipped: tuple[SkippedSource, ...]


class _Task(msgspec.Struct, frozen=True):
    """Files to analyze together; of ``quiet`` ones (no collectives) only the syntax is checked."""

    program: ProgramFiles
    quiet: bool
    strict: bool

    @property
    def cost(self) -> int:
        """The cost in bytes: analyzing a byte costs about ten times as much as parsing it."""
        return sum(len(file.content) for file in self.program.files) * (1 if self.quiet else 10)


def analyze_files(
    files: Sequence[SourceFile],
    cache: Path | None = None,
    *,
    strict: bool = False,
    on_progress: OnProgress | None = None,
) -> AnalysisResult:
    """Return the findings of all rules for the program of these files.

    The folder ``cache`` holds the result for the whole program and for each large component. With
    ``on_progress``, a separate process analyzes large programs, so that progress can be reported.
    """
    if cache is None:
        parts = _run_tasks(_split_tasks(files, strict=strict), on_progress)
        return _select_by_scripts(files, _merge_results(files, parts), strict=strict)
    name = lint_cache.cache_key(files, strict=strict)
    result = lint_cache.load_entry(cache, name, AnalysisResult)
    if result is None:
        parts = _run_or_load(_split_tasks(files, strict=strict), cache, on_progress)
        result = _select_by_scripts(files, _merge_results(files, parts), strict=strict)
        _save(cache, name, result)
    return result


def _select_by_scripts(
    files: Sequence[SourceFile], result: AnalysisResult, *, strict: bool
) -> AnalysisResult:
    """Leave out findings that need several ranks in lines that only scripts of one process reach.

    A package is analyzed without the scripts that use it; ``strict``: all findings are kept.
    """
    if strict or not any(finding.rule in _RULES_OF_SCRIPTS for finding, _ in result.findings):
        return result
    # not at the top: few programs have such findings
    from holdfast.lint.patterns.entry_points import EntryPoints  # noqa: PLC0415

    entry_points = EntryPoints(files)
    kept = tuple(
        (finding, suppressed)
        for finding, suppressed in result.findings
        if finding.rule not in _RULES_OF_SCRIPTS
        or entry_points.may_run_on_several_ranks(
            finding.finding.subject.file or "", finding.finding.subject.line or 0
        )
    )
    return msgspec.structs.replace(result, findings=kept)


def _save(cache: Path, name: str, result: AnalysisResult) -> None:
    """Keep a result unless the linter failed, which the next version may not."""
    if not any(skipped.is_failure for skipped in result.skipped):
        lint_cache.save_entry(cache, name, result)


def _split_tasks(files: Sequence[SourceFile], *, strict: bool) -> list[_Task]:
    """Split files into programs with collectives and chunks of others; costliest first."""
    tasks = []
    piece: list[SourceFile] = []
    size = 0
    for program in split_programs(files):
        if mentions_collectives(program.files):
            tasks.append(_Task(program, quiet=False, strict=strict))
            continue
        for file in program.owned_files:
            piece.append(file)
            size += len(file.content)
            if size > _CHUNK_BYTES:
                tasks.append(_Task(whole_program(piece), quiet=True, strict=strict))
                piece, size = [], 0
    if piece:
        tasks.append(_Task(whole_program(piece), quiet=True, strict=strict))
    return sorted(tasks, key=lambda task: -task.cost)


def _run_or_load(
    work: Sequence[_Task], cache: Path, on_progress: OnProgress | None
) -> list[AnalysisResult]:
    """Run the tasks whose results are not in the cache."""
    names = [
        lint_cache.cache_key(
            task.program.files,
            strict=task.strict,
            owned=len(task.program.owned),
            reports_all=task.program.reports_all,
        )
        if task.cost > _MIN_CACHED_COST
        else ""
        for task in work
    ]
    cached_results = [
        lint_cache.load_entry(cache, name, AnalysisResult) if name else None for name in names
    ]
    new_results = iter(
        _run_tasks(
            [
                pending
                for pending, cached in zip(work, cached_results, strict=True)
                if cached is None
            ],
            on_progress,
        )
    )
    results = []
    for name, cached in zip(names, cached_results, strict=True):
        result = cached if cached is not None else next(new_results)
        if cached is None and name and len(work) > 1:
            _save(cache, name, result)
        results.append(result)
    return results


def _run_tasks(
    work: Sequence[_Task], on_progress: OnProgress | None = None
) -> list[AnalysisResult]:
    """Run the tasks, in several processes if there is enough work."""
    count = (
        min(len(os.sched_getaffinity(0)), len(work), _MAX_PROCESSES)
        if sys.platform == "linux"
        else 1
    )
    if (
        count > (0 if on_progress is not None else 1)
        and sum(task.cost for task in work) > _MIN_PARALLEL_COST
        and threading.active_count() == 1
    ):
        return _run_parallel(work, count, on_progress)
    return [_runner(work)(task) for task in work]


def _run_parallel(
    work: Sequence[_Task], count: int, on_progress: OnProgress | None
) -> list[AnalysisResult]:
    from concurrent.futures import (  # noqa: PLC0415 - 30 modules
        FIRST_COMPLETED,
        ProcessPoolExecutor,
        wait,
    )
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    try:
        with ProcessPoolExecutor(count, get_context("fork")) as pool:
            cost_by_future = {pool.submit(_runner(work), task): task.cost for task in work}
            pending = set(cost_by_future)
            while pending and on_progress is not None:
                pending = wait(pending, _PROGRESS_INTERVAL_S, FIRST_COMPLETED).not_done
                total = sum(cost_by_future.values())
                done = total - sum(cost_by_future[future] for future in pending)
                on_progress(sum(len(task.program.owned) for task in work), done, total)
            return [future.result() for future in cost_by_future]
    except BrokenProcessPool:  # a worker was killed, probably for its memory use: run one by one
        return [_runner(work)(task) for task in work]


def _runner(work: Sequence[_Task]) -> Callable[[_Task], AnalysisResult]:
    """Return what runs each task: an error in the linter ends only the run of a single one."""
    return _run_task if len(work) == 1 else _run_task_of_several


def _run_task_of_several(work: _Task) -> AnalysisResult:
    """Run a task; an error in the linter does not hide the findings in the other programs."""
    try:
        return _run_task(work)
    except Exception as error:  # noqa: BLE001 - any, and it is reported
        first, *more = sorted(work.program.owned)
        why = (
            f"an error in holdfast ({type(error).__name__}: {error}); "
            f"`holdfast lint {first}` shows where: please report it"
        )
        why += f", with {pluralize(len(more), 'more file')} of its program" if more else ""
        return AnalysisResult((), 0, 0, (SkippedSource(first, why, is_failure=True),))


def _run_task(work: _Task) -> AnalysisResult:
    with gc_paused():
        if work.quiet:
            checked = sources_files.check_syntax(work.program.files)
            return AnalysisResult((), checked.files, checked.lines, checked.skipped)
        return _analyze_program(work)


def _analyze_program(work: _Task) -> AnalysisResult:
    # not at the top: cached results need no interpreter
    from holdfast.lint.interpreter.programs import Program  # noqa: PLC0415

    program = work.program
    sources = sources_files.parse_files(program.files)
    divergences = Program(sources.modules, strict=work.strict).analyze()
    findings = _make_findings(sources, divergences) if divergences else ()
    own_modules = [module for module in sources.modules.values() if module.file in program.owned]
    done = AnalysisResult(
        tuple(
            (finding, suppressed)
            for finding, suppressed in findings
            if program.reports_all
            or report.path_of(finding.finding.subject.file or "") in program.owned
        ),
        len(own_modules),
        sum(len(module.lines) for module in own_modules),
        tuple(
            skipped for skipped in sources.skipped if report.path_of(skipped.file) in program.owned
        ),
    )
    sources.release()
    return done


def _make_findings(
    sources: ParsedSources, divergences: Iterable[Divergence]
) -> tuple[tuple[RuleFinding, bool], ...]:
    # not at the top: cached results need no rules
    from holdfast.lint.rules.catalogue import judge_divergences  # noqa: PLC0415
    from holdfast.lint.rules.suggestions import suggest_change  # noqa: PLC0415
    from holdfast.lint.sources import notebook_cells  # noqa: PLC0415
    from holdfast.lint.sources.columns import ColumnFinder  # noqa: PLC0415

    texts = {module.file: module.lines for module in sources.modules.values()}
    books = {
        module.file: module.notebook
        for module in sources.modules.values()
        if module.notebook is not None
    }
    if books:
        divergences = [
            notebook_cells.with_cell_locations(located, books) for located in divergences
        ]
        for file, book in books.items():
            texts |= notebooks.iter_cell_lines(file, book)
    columns = ColumnFinder(sources.modules)
    findings = [
        RuleFinding(
            rule.name,
            finding,
            columns.column(divergence),
            suggest_change(divergence, texts.get(divergence.location.file, ())),
            rule.fix(divergence, texts.get(divergence.location.file, ())),
            _cited_lines(texts, finding),
        )
        for rule, divergence, finding in judge_divergences(divergences)
    ]
    return tuple((finding, _is_suppressed(texts, finding)) for finding in findings)


def _merge_results(files: Sequence[SourceFile], parts: Iterable[AnalysisResult]) -> AnalysisResult:
    """Merge results, sorted by file and line; on one line the most severe finding comes first.

    Several programs may report the same finding in a file that they share.
    """
    parts = list(parts)
    order = {str(file.path): at for at, file in enumerate(files)}

    def sort_key(finding: tuple[RuleFinding, bool]) -> tuple[str, int, int]:
        subject = finding[0].finding.subject
        return report.location_sort_key(subject.file or "", subject.line)

    findings: dict[tuple[str, str | None, int | None], tuple[RuleFinding, bool]] = {}
    for finding, suppressed in chain.from_iterable(part.findings for part in parts):
        subject = finding.finding.subject
        findings.setdefault((finding.rule, subject.file, subject.line), (finding, suppressed))
    return AnalysisResult(
        tuple(sorted(findings.values(), key=sort_key)),
        sum(part.files for part in parts),
        sum(part.lines for part in parts),
        tuple(
            sorted(
                chain.from_iterable(part.skipped for part in parts),
                key=lambda skipped_file: order.get(skipped_file.file, 0),
            )
        ),
    )


def _cited_lines(texts: Mapping[str, Sequence[str]], finding: Finding) -> dict[str, str]:
    """Return the source lines that a finding cites."""
    finding_origin = report.format_location(finding.subject.file or "", finding.subject.line)
    cited = {}
    for origin in (finding_origin, *(fact.origin for fact in finding.evidence)):
        file, line = report.parse_location(origin)
        lines = texts.get(file, ())
        if 0 < line <= len(lines):
            cited[origin] = lines[line - 1].strip()[:_MAX_SOURCE_LINE]
    return cited


def _is_suppressed(texts: Mapping[str, Sequence[str]], finding: RuleFinding) -> bool:
    """Return True if the line has ``# noqa`` or ``# noqa: SYNC004`` (code or rule name)."""
    subject = finding.finding.subject
    lines = texts.get(subject.file or "", ())
    if not subject.line or subject.line > len(lines):
        return False
    comment = _SUPPRESSION.search(lines[subject.line - 1])
    if comment is None:
        return False
    codes = {
        word.strip().lower()
        for word in (comment["codes"] or "").lstrip(": ").split(",")
        if word.strip()
    }
    return not codes or bool(
        codes & {finding.rule, finding.finding.cause, finding.finding.code.lower()}
    )
