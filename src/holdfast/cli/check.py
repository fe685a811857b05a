"""``holdfast check``: preflight checks for one host, or several hosts together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import check_hosts, connect
from holdfast.cli.general_options import GroupedCommand, OutputFile
from holdfast.cli.language import language_option

if TYPE_CHECKING:
    from holdfast.preflight.check import HostReport

_OPTION_GROUPS = {
    "Start of a job": "connect rank world-size master-addr master-port backend",
    "Several hosts": "nnodes node-rank rdzv-endpoint wait hosts-file no-job",
}


@click.command(cls=GroupedCommand, groups=_OPTION_GROUPS)
@click.option(
    "--only", "names", metavar="NAME", multiple=True, help="Run only this check. Repeatable."
)
@click.option("--list", "list_all", is_flag=True, help="List the checks.")
@click.option(
    "--nproc-per-node",
    "workers",
    metavar="N",
    type=click.IntRange(1),
    help="Workers of the job on this host, and of the smoke test of several hosts "
    "[default: one per visible GPU, at least 1].",
)
@click.option(
    "--checkpoints", metavar="DIR", type=Path, help="Folder where checkpoints will be written."
)
@connect.options
@check_hosts.options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
@click.option("--html", metavar="FILE", type=OutputFile(), help="Write an HTML report.")
@language_option
def command(
    *,
    names: tuple[str, ...],
    list_all: bool,
    workers: int | None,
    checkpoints: Path | None,
    as_json: bool,
    html: Path | None,
    use_connect: bool,
    **options: Any,
) -> int:
    """Run preflight checks on this host: GPUs, memory, network, limits, disks and versions.

    Nothing is changed. What cannot be checked is reported as unknown. Takes a few seconds.
    """
    from holdfast.cli.progress import ElapsedProgress
    from holdfast.core import settings
    from holdfast.host.checks import CHECKS, CheckContext
    from holdfast.preflight.check import check_host, report_lines

    if list_all:
        click.echo("\n".join(f"{each.name:<20} {each.description}" for each in CHECKS.values()))
        return 0
    if use_connect and html is not None:
        raise click.UsageError("--html cannot be combined with --connect")
    if use_connect:
        return connect.run(
            options, check_hosts.parse_wait(options["wait"]), workers, as_json=as_json
        )
    context = CheckContext(
        environ=settings.current_environment(),
        workers=workers,
        checkpoints=str(checkpoints) if checkpoints else None,
    )
    context = check_hosts.use_master_port(context, options["master_port"])
    status = check_hosts.run(options, context, names, as_json=as_json, html=html)
    if status is not None:
        return status
    with ElapsedProgress(sys.stderr, "checking this host"):
        report = check_host(check_hosts.add_endpoint(options, context), names)
    check_hosts.write_page(report, html)
    if as_json:
        _print_json(report)
        return report.exit_status
    from holdfast.report.check_table import render_checks, warning_state
    from holdfast.report.terminal import render_verdict

    render_checks(report_lines(report.checks), file=sys.stdout, elapsed_s=report.elapsed_s)
    render_verdict(report.verdict, file=sys.stdout, warning_headline=warning_state(report.verdict))
    return report.exit_status


def _print_json(report: HostReport) -> None:
    from holdfast.report.json import envelope, write_json

    write_json(
        sys.stdout,
        envelope(
            "check",
            report.findings,
            report.verdict,
            checks=report.checks,
            elapsed_s=report.elapsed_s,
        ),
    )
