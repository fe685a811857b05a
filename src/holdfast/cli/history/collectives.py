"""``holdfast history collectives``: list collectives that timed out or were slow."""

from __future__ import annotations

import sys

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


@click.command()
@since_option()
@store_option
@json_option
def command(*, since: float | None, store: str | None, as_json: bool) -> None:
    """List kinds of collectives that timed out or were slow, newest first, with their counts."""
    from holdfast.core.collective_history import describe_problem
    from holdfast.report.json import envelope, write_json

    database = open_store(store)
    from holdfast.serve.store.queries import read_slow_collectives

    problems = read_slow_collectives(database, window_start(since))
    if as_json:
        document = envelope(
            "history collectives", (), None, store=database.name, collectives=problems
        )
        write_json(sys.stdout, document)
        return
    for problem in problems:
        click.echo(f"{format_moment(problem.at)}  {describe_problem(problem, 0)}")
    if not problems:
        remark("no collective was slow")
