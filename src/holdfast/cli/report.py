"""``holdfast report``: create a debug bundle with secrets redacted."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.general_options import OutputFile, remark, verbosity


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OutputFile(),
    help="Archive to write (default: holdfast-report-TIME.tar.gz).",
)
@click.option("--redact-hosts", is_flag=True, help="Also redact host names and IP addresses.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(
    *, paths: tuple[Path, ...], output: Path | None, redact_hosts: bool, as_json: bool
) -> int:
    """Bundle logs, dumps, trace files, verdicts and system information into one archive.

    PATH is the folder of a run, another folder, or a file (default: the newest run in
    holdfast-runs). Secrets, e-mail addresses and names of home folders are redacted. `holdfast
    diagnose` reads the archive.
    """
    import sys
    import time

    from holdfast.core import settings
    from holdfast.core.text import pluralize
    from holdfast.diagnose.bundle.archive import create_bundle
    from holdfast.diagnose.bundle.evidence_files import find_newest_run, read_run_verdict
    from holdfast.report.json import envelope, write_json

    target = output or Path(time.strftime("holdfast-report-%Y%m%d-%H%M%S.tar.gz"))
    sources = paths or find_newest_run(settings.read_path("HOLDFAST_RUN_DIR"))
    if not sources:
        remark("holdfast: no run found; the report describes this machine only")
    show_progress = sys.stderr.isatty() and verbosity() >= 0
    bundle = create_bundle(
        sources,
        target,
        settings.current_environment(),
        redact_hosts=redact_hosts,
        on_progress=lambda name: (
            click.echo(f"\r\x1b[Kholdfast: {name[-100:]}", nl=False, err=True)
            if show_progress
            else None
        ),
    )
    if show_progress:
        click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        write_json(sys.stdout, envelope("report", (), read_run_verdict(sources), report=bundle))
        return 0
    click.echo(
        f"{bundle.archive}: {pluralize(len(bundle.members), 'file')}, {bundle.size / 1e6:.1f} MB"
    )
    for kind, count in bundle.redacted.items():
        click.echo(f"  redacted  {count:>6}  {kind}")
    for each in bundle.left_out:
        click.echo(f"  omitted   {each.name}: {each.why}")
    click.echo("Review it before you share it. Read it with: holdfast diagnose " + bundle.archive)
    return 0
