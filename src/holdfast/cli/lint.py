"""``holdfast lint``: the dead-lock in the source, before it costs a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import click

FORMATS = ("text", "json", "github", "sarif", "junit")


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--select", metavar="NAMES", help="Only these rules: names, codes or beginnings of codes, by comma.")
@click.option("--ignore", metavar="NAMES", help="All rules but these.")
@click.option("--output-format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--explain", is_flag=True, help="Say with each finding how the difference comes about, and what to do.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    *, paths: tuple[Path, ...], select: str | None, ignore: str | None, form: str, explain: bool, as_json: bool
) -> int:
    """Find collectives that not all ranks reach, in the files and folders PATH (default: here), read as one program.

    Nothing is imported or run. `# noqa: SYNC004` on a line excuses it. Exit status 1 where something is worse than
    advice.
    """
    from holdfast import __version__
    from holdfast.actions.lint import lint
    from holdfast.report import json
    from holdfast.report import lint as report
    from holdfast.report.text import plural

    linted = lint(paths or (Path(),), _words(select), _words(ignore))
    claims = [(each.rule, each.finding) for each in linted.claims]
    match "json" if as_json else form:
        case "json":
            findings = [claim for _, claim in claims]
            rules = [name for name, _ in claims]
            more = {"rules": rules, "files": linted.files, "lines": linted.lines, "passed_over": linted.passed}
            json.write(sys.stdout, json.envelope("lint", findings, None, **more))
        case "github":
            click.echo("\n".join(report.github(claims)), nl=bool(claims))
        case "sarif":
            click.echo(report.sarif(claims, __version__))
        case "junit":
            click.echo(report.junit(claims))
        case _:
            for line in report.lines(claims, explain=explain):
                click.echo(line)
    for passed in linted.passed:
        click.echo(f"{passed.file}: passed over, as {passed.why}", err=True)
    found = plural(len(claims), "finding") if claims else "nothing found"
    excused = f", {linted.excused} excused" if linted.excused else ""
    click.echo(f"{found}{excused} in {plural(linted.files, 'file')}, {linted.lines:,} lines", err=True)
    return linted.exit_status


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
