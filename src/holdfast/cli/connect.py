"""``holdfast check --connect``: the test of two hosts, or more, by itself; a part of ``holdfast check``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from holdfast.errors import BadValue

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Option -> the variable that a launcher sets for the same.
_VARIABLES = {
    "--rank": "RANK", "--world-size": "WORLD_SIZE", "--master-addr": "MASTER_ADDR", "--master-port": "MASTER_PORT",
}  # fmt: skip
_LARGEST_PORT = 65535
_MOST_RANKS = 4096


def options(command: _Function) -> _Function:
    """The options that are for ``--connect`` alone."""
    for option in reversed((
        click.option("--connect", is_flag=True, help="Let the ranks of a small job find each other, stage by stage: "
                     "resolve, route, TCP, all ways, store, group, barrier, all-reduce."),
        click.option("--rank", metavar="R", type=int, help="This rank, with --connect [$RANK]."),
        click.option("--world-size", metavar="N", type=int, help="How many ranks there are [$WORLD_SIZE]."),
        click.option("--master-addr", metavar="HOST", help="Where rank 0 runs [$MASTER_ADDR]."),
        click.option("--master-port", metavar="PORT", type=int, help="The port of its store [$MASTER_PORT]."),
        click.option("--backend", type=click.Choice(["gloo", "nccl"]), help="Instead of NCCL on GPUs, else gloo."),
    )):  # fmt: skip
        command = option(command)
    return command


def run(given: Mapping[str, Any], wait_s: float, workers: int | None, *, as_json: bool) -> int:
    """Make the test; the exit status. Raises BadValue."""
    from holdfast import settings
    from holdfast.actions.connect import connect, to_json
    from holdfast.facts.reach.meeting import Muster

    environ = settings.environment()
    rank, world = (_number(given, option, environ) for option in ("--rank", "--world-size"))
    port = _number(given, "--master-port", environ)
    if not 1 <= world <= _MOST_RANKS:
        raise BadValue("--world-size", why=f"{world} is no number of ranks from 1 to {_MOST_RANKS:,}")
    if not 0 <= rank < world:
        raise BadValue("--rank", why=f"{rank} is no rank of {world}", next_step=f"ranks are 0 to {world - 1}")
    if not 1 <= port <= _LARGEST_PORT:
        raise BadValue("--master-port", why=f"{port} is no port", next_step="ports are 1 to 65535")
    muster = Muster(
        host=_text(given, "--master-addr", environ), port=port, nodes=world, node=rank, wait_s=wait_s, environ=environ
    )
    connected = connect(muster, given["backend"] or "", workers=workers or 1)
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("check", connected.findings, connected.verdict, elapsed_s=connected.elapsed_s,
                                   **to_json(connected)))  # fmt: skip
        return connected.exit_status
    from holdfast.report.checks import render_checks
    from holdfast.report.terminal import render_verdict

    render_checks(connected.lines, file=sys.stdout, elapsed_s=connected.elapsed_s, called="stage")
    render_verdict(connected.verdict, file=sys.stdout)
    return connected.exit_status


def _text(given: Mapping[str, Any], option: str, environ: Mapping[str, str]) -> str:
    found = given[option.lstrip("-").replace("-", "_")]
    found = environ.get(_VARIABLES[option], "") if found is None else str(found)
    if not found:
        why = "it is not given, and neither is its variable"
        raise BadValue(option, why=why, next_step=f"give {option}, or set {_VARIABLES[option]}, on every host")
    return found


def _number(given: Mapping[str, Any], option: str, environ: Mapping[str, str]) -> int:
    text = _text(given, option, environ)
    try:
        return int(text)
    except ValueError:
        raise BadValue(option, why=f"{text!r} is no whole number") from None
