"""``holdfast report``: one archive with everything that somebody else needs, without secrets."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path),
              help="The archive (default: holdfast-report-TIME.tar.gz).")  # fmt: skip
@click.option("--redact-hosts", is_flag=True, help="Replace names of hosts and IP addresses, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, paths: tuple[Path, ...], output: Path | None, redact_hosts: bool, as_json: bool) -> int:
    """Put logs, dumps, boxes, verdicts and a description of this machine into one archive, to hand to somebody else.

    PATH is the folder of a run, any other folder, or a file; without one it is the newest run in holdfast-runs.
    Secrets, e-mail addresses and the names of home folders are replaced. `holdfast diagnose` reads the archive.
    """
    import sys
    import time

    from holdfast import settings
    from holdfast.actions.bundle import bundle
    from holdfast.actions.evidence_files import newest_run, verdict_of
    from holdfast.report.json import envelope, write
    from holdfast.report.text import plural

    target = output or Path(time.strftime("holdfast-report-%Y%m%d-%H%M%S.tar.gz"))
    chosen = paths or newest_run(settings.path("HOLDFAST_RUN_DIR"))
    if not chosen:
        click.echo("holdfast: no run was found, so the report describes this machine alone", err=True)
    loud = sys.stderr.isatty()
    made = bundle(
        chosen, target, settings.environment(), redact_hosts=redact_hosts,
        say=lambda name: click.echo(f"\r\x1b[Kholdfast: {name[-100:]}", nl=False, err=True) if loud else None,
    )  # fmt: skip
    if loud:
        click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        write(sys.stdout, envelope("report", (), verdict_of(chosen), report=made))
        return 0
    click.echo(f"{made.archive}: {plural(len(made.members), 'file')}, {made.size / 1e6:.1f} MB")
    for kind, count in made.redacted.items():
        click.echo(f"  redacted  {count:>6}  {kind}")
    for each in made.left_out:
        click.echo(f"  left out  {each.name}: {each.why}")
    click.echo("Look through it before you hand it on. It is read with: holdfast diagnose " + made.archive)
    return 0
