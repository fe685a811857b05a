"""``holdfast lint``: the dead-lock in the source, before it costs a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.actions.lint.linting import Linted
    from holdfast.actions.mend import Change

FORMATS = ("text", "json", "github", "sarif", "junit")
_STDIN = Path("-")


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path, readable=False))
@click.option("--select", metavar="NAMES", help="Only these rules: names, codes or beginnings of codes, by comma.")
@click.option("--ignore", metavar="NAMES", help="All rules but these.")
@click.option("--exclude", metavar="PATTERNS", help="Files and folders that are not read, by comma: `tests,*_pb2.py`.")
@click.option("--output-format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--explain", is_flag=True, help="With each finding the lines of code that lead to it, and what to do.")
@click.option("--strict/--no-strict", default=None, help="Show also what the analysis cannot decide.")
@click.option("--fix", is_flag=True, help="Mend what can be mended without changing a right program, and lint again.")
@click.option("--diff", is_flag=True, help="Show what --fix would do, and do not do it.")
@click.option("--watch", is_flag=True, help="Lint again whenever a file changes, until Ctrl-C.")
@click.option("--statistics", is_flag=True, help="How many findings each rule has, instead of the findings.")
@click.option(
    "--stdin-filename", metavar="FILE", type=click.Path(path_type=Path), help="What `-`, the input, is called."
)
@click.option("--no-cache", is_flag=True, help="Neither look for nor keep what was found in files that did not change.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
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
    """Find collectives that not all ranks reach, in the files and folders PATH (default: here), read as one program.

    Nothing is imported or run. `-` is standard input. `# noqa: SYNC004` on a line excuses it; [tool.holdfast.lint] in
    pyproject.toml holds what need not be said each time. Exit status 1 where something is worse than advice, 2 where a
    PATH cannot be read.
    """
    from holdfast import settings
    from holdfast.actions.lint.linting import lint
    from holdfast.actions.lint.options import given
    from holdfast.facts.code.notebooks import MOST_BYTES
    from holdfast.report import lint as report
    from holdfast.report.text import one_line, plural

    if (fix or diff or watch) and _STDIN in paths:
        raise click.UsageError("--fix, --diff and --watch are for files, and `-` is none")
    unsaved = {}
    if _STDIN in paths:
        name = stdin_filename or _STDIN
        unsaved[name] = sys.stdin.buffer.read(MOST_BYTES + 1)
        paths = (name, *(path for path in paths if path != _STDIN))  # before the same file as it is on disk
    elif stdin_filename is not None:
        raise click.UsageError("--stdin-filename is what `-` is called, and there is no `-` among the paths")
    where = paths or (Path(),)
    cache = None if no_cache else settings.cache_folder() / "lint"

    def once() -> int:
        options = given(where, select=_words(select), ignore=_words(ignore), exclude=_words(exclude), strict=strict)
        linted = lint(where, options, unsaved, cache)
        changes = _changes(linted) if fix or diff else []
        if diff:
            report.write((row for each in changes for row in report.difference(each.diff())), sys.stdout)
            return int(bool(changes))
        for change in changes:
            change.make()
            click.echo(one_line(f"{change.file}: {plural(change.edits, 'line')} mended"), err=True)
        if changes:
            linted = lint(where, options, cache=cache)
        _show(linted, "json" if as_json else form, explain=explain, statistics=statistics)
        return linted.exit_status

    return _again_and_again(where, once) if watch else once()


def _changes(linted: Linted) -> list[Change]:
    from holdfast.actions.mend import offered

    return list(offered(linted.claims))


def _again_and_again(paths: Sequence[Path], once: Callable[[], int]) -> int:
    """Lint until Ctrl-C; a mistake in the configuration is said, and may be mended meanwhile."""
    from holdfast.actions.lint.watch import rounds
    from holdfast.errors import HoldfastError
    from holdfast.report.text import plural

    for files in rounds(paths):
        if sys.stdout.isatty():
            click.clear()
        try:
            once()
        except HoldfastError as error:
            click.echo(f"holdfast: {error}", err=True)
        sys.stdout.flush()
        click.echo(f"watching {plural(files, 'file')}; Ctrl-C ends", err=True)
    return 0


def _show(linted: Linted, form: str, *, explain: bool, statistics: bool) -> None:
    from holdfast import __version__
    from holdfast.report import json
    from holdfast.report import lint as report
    from holdfast.report.text import one_line

    claims = [(each.rule, each.finding) for each in linted.claims]
    match form:
        case "json":
            findings = [claim for _, claim in claims]
            rules = [name for name, _ in claims]
            more = {"rules": rules, "files": linted.files, "lines": linted.lines, "passed_over": linted.passed}
            json.write(sys.stdout, json.envelope("lint", findings, None, **more))
        case "github":
            click.echo("\n".join(report.github(claims)), nl=bool(claims))
        case "sarif":
            from holdfast.rules.causes import CAUSES

            click.echo(report.sarif(claims, {cause.name: cause for cause in CAUSES}, __version__))
        case "junit":
            click.echo(report.junit(claims))
        case _:
            rows = report.lines(claims, explain=explain, source=linted.source)
            report.write(report.statistics(claims) if statistics else rows, sys.stdout)
    for passed in linted.passed:
        click.echo(one_line(f"{passed.file}: passed over, as {passed.why}"), err=True)
    counts = {"files": linted.files, "lines": linted.lines, "mendable": linted.mendable}
    click.echo(report.summary(findings=len(claims), excused=linted.excused, **counts), err=True)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())
