"""``holdfast history runs``: list the runs in the history store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.cli.history.options import (
    align_columns,
    format_moment,
    json_option,
    open_store,
    since_option,
    store_option,
    window_start,
)

if TYPE_CHECKING:  # an extra, imported when used
    from holdfast.serve.store.queries import StoredRun


@click.command()
@since_option()
@store_option
@json_option
def command(*, since: float | None, store: str | None, as_json: bool) -> None:
    """List runs, newest first: start, name, status, ranks, duration, incidents and command.

    Status `-`: no end was recorded; the run continues, or its host was lost.
    """
    from holdfast.report.json import envelope, write_json

    database = open_store(store)
    from holdfast.serve.store.queries import read_runs

    runs = read_runs(database, window_start(since))
    if as_json:
        write_json(sys.stdout, envelope("history runs", (), None, store=database.name, runs=runs))
        return
    for line in align_columns(_rows(runs)):
        click.echo(line)


def _rows(runs: list[StoredRun]) -> Iterator[tuple[str, ...]]:
    from holdfast.core.text import format_duration, shorten
    from holdfast.serve.store.cost import run_end

    yield "began", "run", "status", "ranks", "time", "incidents", "command"
    for run in runs:
        yield (
            format_moment(run.began),
            run.name,
            "-" if run.status is None else str(run.status),
            str(run.world_size),
            format_duration(run_end(run) - run.began),
            str(len(run.incidents)),
            shorten(run.command, 60),
        )
