"""``holdfast check``: is this host, or this set of hosts, fit to train?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from holdfast.cli import connect as connecting
from holdfast.cli import hosts as several


@click.command()
@click.option("--only", "names", metavar="NAME", multiple=True, help="Make this check alone; may be repeated.")
@click.option("--list", "list_all", is_flag=True, help="List the checks.")
@click.option(
    "--nproc-per-node",
    "workers",
    metavar="N",
    type=click.IntRange(1),
    help="Workers that will run "
    "here; the small job that several hosts make has so many on each [as many as GPUs are visible, else 1].",
)
@click.option("--checkpoints", metavar="DIR", type=Path, help="The folder into which checkpoints will go.")
@connecting.options
@several.options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    *, names: tuple[str, ...], list_all: bool, workers: int | None, checkpoints: Path | None, as_json: bool,
    connect: bool, **more: Any,
) -> int:  # fmt: skip
    """Look at this host before a job starts: GPUs, memory, network, limits, disks, versions; nothing is changed.

    What cannot be seen is said to be unknown, and never taken for fine. It takes some seconds.
    """
    from holdfast import settings
    from holdfast.actions.check import check_host, lines
    from holdfast.facts.checks import CHECKS, Place

    if list_all:
        for check in CHECKS.values():
            click.echo(f"{check.name:<20} {check.about}")
        return 0
    if connect:
        return connecting.run(more, several.seconds(more["wait"]), workers, as_json=as_json)
    place = Place(
        environ=settings.environment(), workers=workers, checkpoints=str(checkpoints) if checkpoints else None
    )
    if (status := several.run(more, place, names, as_json=as_json)) is not None:
        return status
    report = check_host(several.meeting(more, place), names)
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("check", report.findings, report.verdict, checks=report.checks,
                                   elapsed_s=report.elapsed_s))  # fmt: skip
        return report.exit_status
    from holdfast.report.checks import render_checks, warned
    from holdfast.report.terminal import render_verdict

    render_checks(lines(report), file=sys.stdout, elapsed_s=report.elapsed_s)
    render_verdict(report.verdict, file=sys.stdout, merely=warned(report.verdict))
    return report.exit_status
