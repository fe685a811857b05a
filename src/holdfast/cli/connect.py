"""``holdfast check --connect``: test whether ranks can start a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from holdfast.core.errors import InvalidValue, UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Option -> the equivalent variable of launchers.
_VARIABLES = {
    "--rank": "RANK",
    "--world-size": "WORLD_SIZE",
    "--master-addr": "MASTER_ADDR",
    "--master-port": "MASTER_PORT",
}
_MAX_PORT = 65535
_MAX_RANKS = 4096


def options(command: _Function) -> _Function:
    """Add the options of ``--connect``."""
    for option in reversed(
        (
            click.option(
                "--connect",
                "use_connect",
                is_flag=True,
                help="Test the start of a job stage by stage: resolve, route, tcp, all pairs of "
                "hosts, "
                "store, group, barrier, all-reduce.",
            ),
            click.option(
                "--rank", metavar="R", type=int, help="This process's rank, with --connect [$RANK]."
            ),
            click.option(
                "--world-size",
                metavar="N",
                type=int,
                help="Number of ranks [$WORLD_SIZE].",
            ),
            click.option("--master-addr", metavar="HOST", help="Host of rank 0 [$MASTER_ADDR]."),
            click.option(
                "--master-port",
                metavar="PORT",
                type=int,
                help="Port of rank 0's store [$MASTER_PORT].",
            ),
            click.option(
                "--backend",
                type=click.Choice(["gloo", "nccl"]),
                help="Backend [default: NCCL on GPUs, else gloo].",
            ),
        )
    ):
        command = option(command)
    return command


def run(options: Mapping[str, Any], wait_s: float, workers: int | None, *, as_json: bool) -> int:
    """Run the test; return the exit status. Raises InvalidValue."""
    from holdfast.core import settings
    from holdfast.preflight.connect import check_connections, connect_json
    from holdfast.preflight.rendezvous.rendezvous import RendezvousConfig

    environ = settings.current_environment()
    rank, world = (_read_number(options, option, environ) for option in ("--rank", "--world-size"))
    port = _read_number(options, "--master-port", environ)
    if not 1 <= world <= _MAX_RANKS:
        raise InvalidValue(
            "--world-size", why=f"{world} is not a number of ranks from 1 to {_MAX_RANKS:,}"
        )
    if not 0 <= rank < world:
        raise InvalidValue(
            "--rank", why=f"{rank} is not in 0..{world - 1} (--world-size is {world})"
        )
    if not 1 <= port <= _MAX_PORT:
        raise InvalidValue("--master-port", why=f"{port} is not a port (1 to 65535)")
    config = RendezvousConfig(
        host=_read_text(options, "--master-addr", environ),
        port=port,
        nodes=world,
        node=rank,
        wait_s=wait_s,
        environ=environ,
    )
    report = check_connections(config, options["backend"] or "", workers=workers or 1)
    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(
            sys.stdout,
            envelope(
                "check",
                report.findings,
                report.verdict,
                elapsed_s=report.elapsed_s,
                **connect_json(report),
            ),
        )
        return report.exit_status
    from holdfast.report.check_table import render_checks
    from holdfast.report.terminal import render_verdict

    render_checks(report.lines, file=sys.stdout, elapsed_s=report.elapsed_s, noun="stage")
    render_verdict(report.verdict, file=sys.stdout)
    return report.exit_status


def _read_text(options: Mapping[str, Any], option: str, environ: Mapping[str, str]) -> str:
    value = options[option.lstrip("-").replace("-", "_")]
    text = environ.get(_VARIABLES[option], "") if value is None else str(value)
    if not text:
        raise UsageError(
            f"--connect requires {option}, or the variable {_VARIABLES[option]}, on every host"
        )
    return text


def _read_number(options: Mapping[str, Any], option: str, environ: Mapping[str, str]) -> int:
    text = _read_text(options, option, environ)
    try:
        return int(text)
    except ValueError:
        raise InvalidValue(option, why=f"{text!r} is not an integer") from None
