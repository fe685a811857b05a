"""``holdfast history cost``: what failures cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.general_options import OutputFile
from holdfast.cli.history.options import (
    align_columns,
    json_option,
    open_store,
    since_option,
    store_option,
    window_start,
)

if TYPE_CHECKING:  # an extra, imported when used
    from holdfast.serve.store.cost import HistoryCost


@click.command()
@since_option("30d")
@store_option
@click.option(
    "--html", "html_file", metavar="FILE", type=OutputFile(), help="Write a page with a plot."
)
@json_option
def command(*, since: float, store: str | None, html_file: Path | None, as_json: bool) -> None:
    """Compute mean time between failures, goodput, and GPU-hours lost by cause.

    Lost is the time from the newest checkpoint before a failure (or the start of the workers) to
    the start of the next workers, times the number of ranks. docs/history.md defines each figure.
    """
    from holdfast.report.json import envelope, write_json

    database, begin = open_store(store), window_start(since)
    from holdfast.serve.store.cost import compute_cost
    from holdfast.serve.store.queries import read_runs

    runs = read_runs(database, begin)
    cost = compute_cost(runs, begin, time.time())
    if html_file is not None:
        from holdfast.core.atomic_files import write_atomic
        from holdfast.serve.store.page import cost_page

        write_atomic(html_file, cost_page(cost, runs, database.name).encode())
    if as_json:
        write_json(sys.stdout, envelope("history cost", (), None, store=database.name, cost=cost))
        return
    for line in _lines(cost):
        click.echo(line)


def _lines(cost: HistoryCost) -> Iterator[str]:
    from holdfast.core.text import format_percent, pluralize
    from holdfast.serve.store.cost import format_hours

    total = f"{format_hours(cost.run_hours)} h, {format_hours(cost.gpu_hours)} GPU-hours"
    yield from align_columns(
        (
            ("runs", f"{cost.runs} ({total})"),
            ("failures", str(cost.failures)),
            ("time between failures", _between(cost)),
            ("goodput", "-" if cost.goodput is None else format_percent(cost.goodput)),
            ("lost", f"{format_hours(cost.lost_gpu_hours)} GPU-hours"),
        )
    )
    if not cost.causes:
        return
    yield ""
    head = ("GPU-hours lost", "incidents", "repeated", "waiting", "down", "cause")
    yield from align_columns(
        [
            head,
            *(
                (
                    format_hours(row.gpu_hours),
                    pluralize(row.incidents, "incident"),
                    format_hours(row.repeated_gpu_hours),
                    format_hours(row.silent_gpu_hours),
                    format_hours(row.down_gpu_hours),
                    f"{row.code} {row.cause}".strip(),
                )
                for row in cost.causes
            ),
        ]
    )


def _between(cost: HistoryCost) -> str:
    from holdfast.serve.store.cost import format_hours

    hours, gpu_hours = cost.mean_hours_between_failures, cost.mean_gpu_hours_between_failures
    if hours is None or gpu_hours is None:
        return "-"
    return f"{format_hours(hours)} h ({format_hours(gpu_hours)} GPU-hours)"
