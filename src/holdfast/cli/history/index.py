"""``holdfast history index``: add past run folders to the history store."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from holdfast.cli.history.options import (
    json_option,
    open_store,
    parse_duration_option,
    store_option,
)


@click.command()
@click.argument(
    "folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@store_option
@click.option(
    "--busy",
    metavar="TIME",
    callback=parse_duration_option,
    help="Maximum wait for other processes that write to the store (default: 20s).",
)
@json_option
def command(
    *, folders: tuple[Path, ...], store: str | None, busy: float | None, as_json: bool
) -> int:
    """Add runs to the history store: each FOLDER is a run's folder or a folder of runs.

    Runs that the store has are updated, so the command can be repeated. The records in the run
    folders are not changed, and the folders may be deleted afterwards.
    """
    from holdfast.cli.progress import ElapsedProgress
    from holdfast.core import settings
    from holdfast.core.exit_status import INCONCLUSIVE, OK
    from holdfast.core.text import pluralize
    from holdfast.report.json import envelope, write_json
    from holdfast.serve.store import location

    location.require_libraries()
    from holdfast.serve.store.index import index_folders, prune
    from holdfast.serve.store.run_rows import find_run_folders

    found = [run for folder in folders for run in find_run_folders(folder)]
    database = open_store(store, runs=found[0].absolute().parent, create=True, busy_s=busy)
    with ElapsedProgress(sys.stderr, f"adding {pluralize(len(found), 'run')}"):
        result = index_folders(database, found)
    keep = settings.read_setting("HOLDFAST_HISTORY_KEEP").value
    if isinstance(keep, int | float):
        prune(database, time.time() - keep)
    if as_json:
        document = envelope("history index", (), None, store=database.name, result=result)
        write_json(sys.stdout, document)
    else:
        runs, incidents = pluralize(result.runs, "run"), pluralize(result.incidents, "incident")
        click.echo(f"{runs} with {incidents} in {database.name}")
    for reason in result.unreadable:
        click.echo(f"skipped: {reason}", err=True)
    return INCONCLUSIVE if result.unreadable else OK
