"""``holdfast check --nnodes N --rdzv-endpoint HOST:PORT``: several hosts together; a part of ``holdfast check``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import BadValue

if TYPE_CHECKING:
    from holdfast.actions.check_hosts import Hosts
    from holdfast.facts.checks import Place

_Function = TypeVar("_Function", bound=Callable[..., Any])
_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LONGEST_S = 24 * 3600.0


def options(command: _Function) -> _Function:
    """The options that are for several hosts."""
    for option in reversed((
        click.option("--nnodes", metavar="N", default="", help="Check N hosts together; start this on each of them. "
                     "srun and torchrun say it by themselves."),
        click.option("--node-rank", metavar="R", type=click.IntRange(0), help="Which of the hosts this is, from 0."),
        click.option("--rdzv-endpoint", "endpoint", metavar="HOST:PORT", default="", help="Where the hosts meet: the "
                     "endpoint of the job itself."),
        click.option("--wait", metavar="TIME", default="10s", show_default=True, help="How long hosts wait for each "
                     "other."),
        click.option("--hosts-file", "prefix", metavar="PREFIX", help="Write PREFIXpassing.txt and PREFIXfailing.txt, "
                     "a host a line, for the scheduler."),
        click.option("--no-job", is_flag=True, help="Leave out the small job that torch makes of hosts that all reach "
                     "each other."),
    )):  # fmt: skip
        command = option(command)
    return command


def run(given: Mapping[str, Any], place: Place, names: Sequence[str], *, as_json: bool) -> int | None:
    """Check the hosts together; the exit status, or None where this is about one host alone.

    Raises:
        BadValue: an option or variable cannot be used.
    """
    from msgspec.structs import replace

    from holdfast import settings
    from holdfast.facts.reach.told import told

    wait_s = seconds(given["wait"])
    found = told(
        place.environ, _copy(place.environ), nodes=given["nnodes"], node=given["node_rank"], endpoint=given["endpoint"]
    )
    if found is None:
        return None
    if not found.speaks:
        return 0
    from holdfast.actions.check_hosts import check_hosts, write_lists
    from holdfast.facts.reach.meeting import Muster

    muster = Muster(
        host=found.host, port=found.port, nodes=found.nodes, node=found.node, wait_s=wait_s,
        token=settings.text("HOLDFAST_TOKEN") or "", ports=place.ports, environ=place.environ,
        names=found.names,
    )  # fmt: skip
    if not as_json and sys.stderr.isatty():
        click.echo(f"holdfast: {found.nodes} hosts meet at {found.host}:{found.port} …", err=True)
    hosts = check_hosts(
        replace(place, endpoint=(found.host, found.port)), muster, names, job=not (names or given["no_job"])
    )
    if given["prefix"]:
        write_lists(hosts, given["prefix"])
    _show(hosts, as_json=as_json)
    return hosts.exit_status


def meeting(given: Mapping[str, Any], place: Place) -> Place:
    """The place of one host alone, with the endpoint of its job where an option or a variable names one.

    Raises:
        BadValue: what is named is no endpoint.
    """
    from msgspec.structs import replace

    from holdfast.facts.reach.told import parse

    address, port = place.environ.get("MASTER_ADDR", ""), place.environ.get("MASTER_PORT", "")
    if address:
        address = (f"[{address}]" if ":" in address else address) + (f":{port}" if port else "")
    named = given["endpoint"] or place.environ.get("PET_RDZV_ENDPOINT", "") or address
    return replace(place, endpoint=parse(named)) if named else place


def _copy(environ: Mapping[str, str]) -> Any:
    """Which copy this is, where srun or torchrun started several; processes are looked at only if variables hint it."""
    if not {"SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"} & environ.keys():
        return None
    from holdfast.facts.copies import this_copy
    from holdfast.facts.training_processes import ProcessTable

    return this_copy(ProcessTable())


def seconds(text: str) -> float:
    """Seconds of ``10s``, ``2m``, ``500ms``, as ``--wait`` takes them. Raises BadValue."""
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)\s*", text)
    if found is None or found[2] not in _UNITS_S:
        raise BadValue("--wait", why=f"{text!r} is no time", next_step="say it as 10s or 2m")
    wanted_s = float(found[1]) * _UNITS_S[found[2]]
    if wanted_s > _LONGEST_S:
        raise BadValue("--wait", why=f"{text!r} is longer than a day")
    return wanted_s


def _show(hosts: Hosts, *, as_json: bool) -> None:
    from holdfast.rules.reach.matrix import LEGEND

    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope(
            "check", hosts.findings, hosts.verdict, checks=hosts.checks, nodes=hosts.nodes, hosts=hosts.labels,
            missing=hosts.missing, missing_count=hosts.missing_count, matrix={"rows": hosts.picture, "legend": LEGEND},
            links=hosts.links, clocks=hosts.clocks, passing=hosts.passing, failing=hosts.failing, alone=hosts.alone,
            stages=hosts.stages, elapsed_s=hosts.elapsed_s,
        ))  # fmt: skip
        return
    from holdfast.actions.check import Report, lines
    from holdfast.report.checks import Line, State, render_checks, warned
    from holdfast.report.hosts import Pair, Picture, render_hosts
    from holdfast.report.terminal import render_verdict

    labels = hosts.labels
    told = tuple(each for each in hosts.checks if each.state not in (State.OK, State.ABSENT))
    if told:
        render_checks(lines(Report(told, hosts.verdict, hosts.elapsed_s)), file=sys.stdout, elapsed_s=hosts.elapsed_s)
    if hosts.stages:
        stages = tuple(Line(each.name, "torch", each.state, each.line) for each in hosts.stages)
        render_checks(stages, file=sys.stdout, elapsed_s=hosts.elapsed_s, called="stage")
    render_hosts(Picture(
        labels=labels, rows=hosts.picture, legend=LEGEND,
        pairs=tuple(Pair(ends=f"{labels[each.source]} and {labels[each.target]}", round_trip_s=each.round_trip_s,
                         forth=each.forth, back=each.back) for each in hosts.links),
        clocks={labels[each.number]: (each.ahead_s, each.within_s) for each in hosts.clocks},
    ), file=sys.stdout)  # fmt: skip
    render_verdict(hosts.verdict, file=sys.stdout, merely=warned(hosts.verdict))
