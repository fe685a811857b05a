"""``holdfast history incidents``: list failures of all runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.cli.general_options import remark
from holdfast.cli.history.options import (
    format_moment,
    json_option,
    open_store,
    since_option,
    store_option,
    window_start,
)

if TYPE_CHECKING:  # an extra, imported when used
    from holdfast.serve.store.queries import StoredIncident


@click.command()
@since_option()
@click.option("--cause", metavar="CAUSE", help="Only this cause: a code or a name.")
@click.option("--host", metavar="HOST", help="Only failures of this host.")
@store_option
@json_option
def command(
    *, since: float | None, cause: str | None, host: str | None, store: str | None, as_json: bool
) -> None:
    """List incidents, newest first: time, run, cause, what happened, and what was decided."""
    from holdfast.report.json import envelope, write_json

    database = open_store(store)
    from holdfast.serve.store.queries import IncidentFilter, read_incidents

    wanted = IncidentFilter(since=window_start(since), cause=cause, host=host)
    incidents = read_incidents(database, wanted)
    if as_json:
        document = envelope("history incidents", (), None, store=database.name, incidents=incidents)
        write_json(sys.stdout, document)
        return
    for incident in incidents:
        for line in _lines(incident):
            click.echo(line)
    if not incidents:
        remark("no incident matches")


def _lines(incident: StoredIncident) -> Iterator[str]:
    from holdfast.core.rank_sets import describe_ranks

    cause = f"{incident.code} {incident.cause}" if incident.cause else "no verdict"
    where = [f"rank {incident.rank}"] if incident.rank is not None else []
    where += [f"on {incident.host}"] if incident.host else []
    yield f"{format_moment(incident.at)}  {incident.run}  {cause}  {' '.join(where)}".rstrip()
    indent = " " * 21
    if incident.message:
        yield f"{indent}{incident.message}"
    if len(incident.dead) > 1:
        yield f"{indent}ended: {describe_ranks(incident.dead)}"
    yield f"{indent}{incident.decision.reason}"
    if incident.folder:
        yield f"{indent}{incident.folder}/report.html"
