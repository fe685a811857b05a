"""``holdfast history prune``: delete old runs from the history store."""

from __future__ import annotations

import sys
import time

import click

from holdfast.cli.history.options import (
    json_option,
    open_store,
    parse_duration_option,
    store_option,
)


@click.command()
@click.option(
    "--keep",
    metavar="TIME",
    callback=parse_duration_option,
    required=True,
    help="Age to keep, such as 180d.",
)
@store_option
@json_option
def command(*, keep: float, store: str | None, as_json: bool) -> None:
    """Delete the runs without an event in the last TIME, with their incidents and decisions.

    The run folders are not deleted.
    """
    from holdfast.core.text import pluralize
    from holdfast.report.json import envelope, write_json

    database = open_store(store)
    from holdfast.serve.store.index import prune

    deleted = prune(database, time.time() - keep)
    if as_json:
        document = envelope("history prune", (), None, store=database.name, deleted=deleted)
        write_json(sys.stdout, document)
        return
    click.echo(f"{pluralize(deleted, 'run')} deleted from {database.name}")
