"""``holdfast check --nnodes N --rdzv-endpoint HOST:PORT``: preflight checks of several hosts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.general_options import remark
from holdfast.core.errors import InvalidValue

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.host.checks import CheckContext
    from holdfast.preflight.check import HostReport
    from holdfast.preflight.check_hosts import MultiHostReport

_Function = TypeVar("_Function", bound=Callable[..., Any])
_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_MAX_WAIT_S = 24 * 3600.0
_MAX_PORT = 65535
#: Ports behind the master port that restarts of the job use.
_RESTART_PORTS = 4


def options(command: _Function) -> _Function:
    """Add the options for several hosts."""
    for option in reversed(
        (
            click.option(
                "--nnodes",
                metavar="N",
                default="",
                help="Check N hosts together; run this on each of them. "
                "Set automatically under srun and torchrun.",
            ),
            click.option(
                "--node-rank",
                metavar="R",
                type=click.IntRange(0),
                help="Rank of this host, from 0.",
            ),
            click.option(
                "--rdzv-endpoint",
                "endpoint",
                metavar="HOST:PORT",
                default="",
                help="Rendezvous endpoint of the job, the same on every host.",
            ),
            click.option(
                "--wait",
                metavar="TIME",
                default="10s",
                show_default=True,
                help="How long to wait for the other hosts.",
            ),
            click.option(
                "--hosts-file",
                "prefix",
                metavar="PREFIX",
                help="Write PREFIXpassing.txt and PREFIXfailing.txt, one host per line, "
                "for the scheduler.",
            ),
            click.option(
                "--no-job",
                is_flag=True,
                help="Skip the torch.distributed smoke test.",
            ),
        )
    ):
        command = option(command)
    return command


def run(
    options: Mapping[str, Any],
    context: CheckContext,
    names: Sequence[str],
    *,
    as_json: bool,
    html: Path | None = None,
) -> int | None:
    """Check several hosts together; return the exit status, or None for a check of one host.

    ``html``: a page to write, too.

    Raises:
        UsageError: an option or variable is invalid.
    """
    from msgspec.structs import replace

    from holdfast.core import settings
    from holdfast.preflight.rendezvous.launch_info import read_launch_info

    wait_s = parse_wait(options["wait"])
    launch = read_launch_info(
        context.environ,
        _launched_process(context.environ),
        nodes=options["nnodes"],
        node=options["node_rank"],
        endpoint=options["endpoint"],
    )
    if launch is None:
        return None
    if not launch.is_first_on_node:
        return 0
    from holdfast.preflight.check_hosts import check_hosts, write_host_lists
    from holdfast.preflight.rendezvous.rendezvous import RendezvousConfig

    config = RendezvousConfig(
        host=launch.host,
        port=launch.port,
        nodes=launch.nodes,
        node=launch.node,
        wait_s=wait_s,
        token=settings.read_text("HOLDFAST_TOKEN") or "",
        ports=context.ports,
        environ=context.environ,
        names=launch.names,
    )
    if not as_json and sys.stderr.isatty():
        remark(f"holdfast: waiting for {launch.nodes} hosts at {launch.host}:{launch.port} …")
    hosts = check_hosts(
        replace(context, endpoint=(launch.host, launch.port)),
        config,
        names,
        smoke=not (names or options["no_job"]),
    )
    if options["prefix"]:
        write_host_lists(hosts, options["prefix"], launch.names)
    write_page(hosts, html)
    _show(hosts, as_json=as_json)
    return hosts.exit_status


def write_page(report: HostReport | MultiHostReport, html: Path | None) -> None:
    """Write the report as an HTML page, if one is requested. Raises MissingFile."""
    if html is not None:
        from holdfast.core.atomic_files import write_atomic
        from holdfast.preflight.check_page import check_page

        write_atomic(html, check_page(report).encode(errors="replace"))


def use_master_port(context: CheckContext, port: int | None) -> CheckContext:
    """Return the context of a job whose master port is ``port``, unless None.

    Raises:
        InvalidValue: it is not a port.
    """
    if port is None:
        return context
    from msgspec.structs import replace

    if not 1 <= port <= _MAX_PORT:
        raise InvalidValue("--master-port", why=f"{port} is not a port (1 to {_MAX_PORT})")
    last = min(port + _RESTART_PORTS, _MAX_PORT)
    environ = context.environ | {"MASTER_PORT": str(port)}
    environ.pop("PET_MASTER_PORT", None)
    return replace(context, environ=environ, ports=(port, last))


def add_endpoint(options: Mapping[str, Any], context: CheckContext) -> CheckContext:
    """Return the context with the job's endpoint, if an option or a variable sets it.

    Raises:
        InvalidValue: it is not an endpoint.
    """
    from msgspec.structs import replace

    from holdfast.preflight.rendezvous.launch_info import parse_endpoint_options

    address, port = context.environ.get("MASTER_ADDR", ""), context.environ.get("MASTER_PORT", "")
    if address:
        address = (f"[{address}]" if ":" in address else address) + (f":{port}" if port else "")
    endpoint = options["endpoint"] or context.environ.get("PET_RDZV_ENDPOINT", "") or address
    return replace(context, endpoint=parse_endpoint_options(endpoint)) if endpoint else context


def _launched_process(environ: Mapping[str, str]) -> Any:
    """Return this process's context among those that srun or torchrun started.

    Reads /proc if hinted.
    """
    if not {"SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"} & environ.keys():
        return None
    from holdfast.host.processes.launched_copies import this_copy
    from holdfast.host.processes.training_processes import ProcessTable

    return this_copy(ProcessTable())


def parse_wait(text: str) -> float:
    """Parse ``10s``, ``2m``, ``500ms`` for ``--wait`` as seconds. Raises InvalidValue."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)\s*", text)
    if match is None or match[2] not in _UNITS_S:
        raise InvalidValue("--wait", why=f"{text!r} is not a duration (use e.g. 10s or 2m)")
    wait_s = float(match[1]) * _UNITS_S[match[2]]
    if wait_s > _MAX_WAIT_S:
        raise InvalidValue("--wait", why=f"{text!r} is longer than a day")
    return wait_s


def _show(hosts: MultiHostReport, *, as_json: bool) -> None:
    from holdfast.preflight.rendezvous_rules.matrix import LEGEND

    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(
            sys.stdout,
            envelope(
                "check",
                hosts.findings,
                hosts.verdict,
                checks=hosts.checks,
                nodes=hosts.nodes,
                hosts=hosts.labels,
                missing=hosts.missing,
                missing_count=hosts.missing_count,
                matrix={"rows": hosts.matrix_rows, "legend": LEGEND},
                links=hosts.links,
                clocks=hosts.clocks,
                passing=hosts.passing,
                failing=hosts.failing,
                alone=hosts.alone,
                stages=hosts.stages,
                elapsed_s=hosts.elapsed_s,
            ),
        )
        return
    from holdfast.preflight.check import report_lines
    from holdfast.preflight.host_matrix import HostMatrix, HostPair, render_hosts
    from holdfast.report.check_table import CheckLine, CheckState, render_checks, warning_state
    from holdfast.report.terminal import render_verdict

    labels = hosts.labels
    failed = tuple(
        each for each in hosts.checks if each.state not in (CheckState.OK, CheckState.ABSENT)
    )
    if failed:
        render_checks(
            report_lines(failed),
            file=sys.stdout,
            elapsed_s=hosts.elapsed_s,
        )
    if hosts.stages:
        stages = tuple(
            CheckLine(each.name, "torch", each.state, each.line) for each in hosts.stages
        )
        render_checks(stages, file=sys.stdout, elapsed_s=hosts.elapsed_s, noun="stage")
    render_hosts(
        HostMatrix(
            labels=labels,
            rows=hosts.matrix_rows,
            legend=LEGEND,
            pairs=tuple(
                HostPair(
                    ends=f"{labels[each.source]} and {labels[each.target]}",
                    round_trip_s=each.round_trip_s,
                    forth=each.forth,
                    back=each.back,
                )
                for each in hosts.links
            ),
            clocks={labels[each.number]: (each.ahead_s, each.within_s) for each in hosts.clocks},
        ),
        file=sys.stdout,
    )
    render_verdict(hosts.verdict, file=sys.stdout, warning_headline=warning_state(hosts.verdict))
