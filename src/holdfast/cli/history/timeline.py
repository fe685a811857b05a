"""``holdfast history``: show a run's timeline across restarts."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(*, run: Path | None, as_json: bool) -> None:
    """Show the timeline of RUN, a run's folder, or of the newest run in a folder of runs.

    Lists every start of the workers, every failure with cause and evidence, the progress made, and
    the actions taken. Without RUN: the newest run in the folder used by `holdfast run`.
    """
    from holdfast.core import ledger, settings
    from holdfast.report import run_timeline
    from holdfast.report.json import envelope, write_json

    if run is None:
        run = Path(str(settings.read_setting("HOLDFAST_RUN_DIR").value)).expanduser()
    folder = run_timeline.find_newest_run(run)
    records = ledger.read_ledger(folder)
    if as_json:
        write_json(sys.stdout, envelope("history", (), None, run=str(folder), records=records))
    else:
        run_timeline.print_timeline(run_timeline.describe_records(records), sys.stdout)
