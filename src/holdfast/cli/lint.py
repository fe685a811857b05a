"""``holdfast lint``: find deadlocks in source code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.general_options import remark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.lint.autofix import FileChange
    from holdfast.lint.options import LintOptions
    from holdfast.lint.run import LintResult

FORMATS = ("text", "json", "github", "sarif", "junit")
_STDIN = Path("-")


@click.command()
@click.argument(
    "paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path, readable=False)
)
@click.option(
    "--select",
    metavar="NAMES",
    help="Only these rules: comma-separated names, codes or code prefixes.",
)
@click.option("--ignore", metavar="NAMES", help="All rules except these.")
@click.option(
    "--exclude",
    metavar="PATTERNS",
    help="Files and folders to skip, comma-separated: `tests,*_pb2.py`.",
)
@click.option(
    "--output-format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Show the lines of code that lead to each finding, and remedies.",
)
@click.option(
    "--strict/--no-strict", default=None, help="Also report what the analysis cannot decide."
)
@click.option(
    "--fix",
    is_flag=True,
    help="Apply safe fixes, and lint again.",
)
@click.option("--diff", is_flag=True, help="Show the changes of --fix without applying them.")
@click.option("--watch", is_flag=True, help="Lint again whenever a file changes, until Ctrl-C.")
@click.option("--statistics", is_flag=True, help="Show counts per rule instead of findings.")
@click.option(
    "--stdin-filename",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File name of standard input (`-`).",
)
@click.option(
    "--no-cache",
    is_flag=True,
    help="Disable the cache.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(  # noqa: PLR0913 - one for each option
    *,
    paths: tuple[Path, ...],
    select: str | None,
    ignore: str | None,
    exclude: str | None,
    form: str,
    explain: bool,
    strict: bool | None,
    fix: bool,
    diff: bool,
    watch: bool,
    statistics: bool,
    stdin_filename: Path | None,
    no_cache: bool,
    as_json: bool,
) -> int:
    """Find collectives that not all ranks reach, in the files and folders PATH (default: .).

    All files are analyzed as one program; nothing is imported or executed. `-` is standard input.
    `# noqa: SYNC004` on a line suppresses a finding; [tool.holdfast.lint] in pyproject.toml sets
    defaults. Exit status: 1 for findings above level note, 2 if a PATH cannot be read.
    """
    from holdfast.core import settings
    from holdfast.core.text import one_line, pluralize
    from holdfast.lint.options import parse_lint_options
    from holdfast.lint.sources.notebooks import MOST_BYTES
    from holdfast.report import source_findings as report

    if (fix or diff or watch) and _STDIN in paths:
        raise click.UsageError("--fix, --diff and --watch require files, not standard input (`-`)")
    unsaved = {}
    if _STDIN in paths:
        name = stdin_filename or _STDIN
        unsaved[name] = sys.stdin.buffer.read(MOST_BYTES + 1)
        paths = (
            name,
            *(path for path in paths if path != _STDIN),
        )  # before the same file on disk
    elif stdin_filename is not None:
        raise click.UsageError("--stdin-filename requires `-` (standard input) among the paths")
    targets = paths or (Path(),)
    cache = None if no_cache else settings.cache_folder() / "lint"

    def run_once() -> int:
        options = parse_lint_options(
            targets,
            select=_split_names(select),
            ignore=_split_names(ignore),
            exclude=_split_names(exclude),
            strict=strict,
        )
        result = _lint(targets, options, unsaved, cache)
        changes = _changes(result) if fix or diff else []
        if diff:
            report.write_lines(
                (row for each in changes for row in report.diff_lines(each.diff())), sys.stdout
            )
            return int(bool(changes))
        for change in changes:
            change.write()
            remark(one_line(f"{change.file}: {pluralize(change.edits, 'line')} fixed"))
        if changes:
            result = _lint(targets, options, {}, cache)
        _show(result, "json" if as_json else form, explain=explain, statistics=statistics)
        return result.exit_status

    return _watch(targets, run_once) if watch else run_once()


def _lint(
    paths: Sequence[Path], options: LintOptions, unsaved: Mapping[Path, bytes], cache: Path | None
) -> LintResult:
    """Lint, with a progress line on the terminal after two seconds."""
    from holdfast.cli.progress import AnalysisProgress
    from holdfast.lint.run import lint_paths

    if not sys.stderr.isatty():
        return lint_paths(paths, options, unsaved, cache)
    with AnalysisProgress(sys.stderr) as progress:
        return lint_paths(
            paths,
            options,
            unsaved,
            cache,
            on_read=progress.tell,
            on_progress=progress.tell_share,
        )


def _changes(result: LintResult) -> list[FileChange]:
    from holdfast.lint.autofix import available_fixes

    return list(available_fixes(result.findings))


def _watch(paths: Sequence[Path], run_once: Callable[[], int]) -> int:
    """Lint until Ctrl-C; configuration errors are printed and can be corrected meanwhile."""
    from holdfast.core.errors import HoldfastError
    from holdfast.core.text import pluralize
    from holdfast.lint.watch import watch_rounds

    for files in watch_rounds(paths):
        if sys.stdout.isatty():
            click.clear()
        try:
            run_once()
        except HoldfastError as error:
            click.echo(f"holdfast: {error}", err=True)
        sys.stdout.flush()
        remark(f"watching {pluralize(files, 'file')}; press Ctrl-C to stop")
    return 0


def _show(result: LintResult, form: str, *, explain: bool, statistics: bool) -> None:
    from holdfast import __version__
    from holdfast.core.text import one_line
    from holdfast.report import json
    from holdfast.report import source_findings as report

    findings = result.findings
    match form:
        case "json":
            more = {
                "rules": [each.rule for each in findings],
                "files": result.files,
                "lines": result.lines,
                "passed_over": result.skipped,
            }
            envelope = json.envelope("lint", [each.finding for each in findings], None, **more)
            for each, document in zip(findings, envelope["findings"], strict=True):
                document["rule"], document["subject"]["column"] = each.rule, each.column
                document["suggestion"] = each.suggestion
            json.write_json(sys.stdout, envelope)
        case "github":
            click.echo("\n".join(report.github_commands(findings)), nl=bool(findings))
        case "sarif":
            from holdfast.causes import all_causes

            click.echo(
                report.sarif_log(
                    findings, {cause.name: cause for cause in all_causes()}, __version__
                )
            )
        case "junit":
            click.echo(report.junit_suite(findings))
        case _:
            rows = report.finding_lines(findings, explain=explain, source=result.source)
            report.write_lines(report.count_lines(findings) if statistics else rows, sys.stdout)
    for skipped in result.skipped:
        click.echo(one_line(str(skipped)), err=True)
    counts = {"files": result.files, "lines": result.lines, "fixable": result.fixable}
    remark(report.summarize(findings=len(findings), suppressed=result.suppressed, **counts))


def _split_names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())
