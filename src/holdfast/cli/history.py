"""``holdfast history``: what happened to a run over all its restarts, what was decided, and on what evidence."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, run: Path | None, as_json: bool) -> None:
    """Tell what happened to RUN, the folder of a run, or to the newest one of a folder of runs.

    Every start of the workers, every failure with its cause and evidence, how far the job had come, and what was
    decided. Without RUN: the newest run in the folder where `holdfast run` puts them.
    """
    from holdfast import settings
    from holdfast.actions import ledger, story
    from holdfast.report import history
    from holdfast.report.json import envelope, write

    base = run if run is not None else Path(str(settings.read("HOLDFAST_RUN_DIR").value)).expanduser()
    folder = story.newest(base)
    records = ledger.read(folder)
    if as_json:
        write(sys.stdout, envelope("history", (), None, run=str(folder), records=records))
    else:
        history.draw(story.story(records), sys.stdout)
