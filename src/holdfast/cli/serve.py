"""``holdfast serve``: a web page and metrics of runs."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.general_options import OutputFolder

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from holdfast.serve.live.job_pipe import JobPipe


@click.command()
@click.argument("runs", metavar="[RUNS]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; another than 127.0.0.1 requires a token.",
)
@click.option("--port", default=8765, show_default=True, help="Port; 0: a free one.")
@click.option("--metrics-only", is_flag=True, help="Serve /metrics only, without the page.")
@click.option(
    "--otlp",
    metavar="URL",
    help="Also export the metrics by OTLP over HTTP, such as http://HOST:4318/v1/metrics.",
)
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=15.0,
    show_default=True,
    help="Interval of --otlp.",
)
@click.option(
    "--reports",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Also show the check*.json and env*.json (written with --json) of this folder.",
)
@click.option("--until-eof", is_flag=True, hidden=True, help="End when standard input ends.")
@click.option(
    "--write-rules",
    metavar="DIR",
    type=OutputFolder(),
    help="Write Prometheus alert rules, a scrape configuration and a Grafana dashboard; then exit.",
)
def command(  # noqa: PLR0913 - one per option
    *,
    runs: Path | None,
    host: str,
    port: int,
    metrics_only: bool,
    otlp: str | None,
    every: float,
    reports: Path | None,
    until_eof: bool,
    write_rules: Path | None,
) -> None:
    """Show RUNS, the folder of all runs or of one, as a web page; serve metrics at /metrics.

    Without RUNS: the folder used by `holdfast run`. The folder is only read. On another address
    than 127.0.0.1, requests need the token in HOLDFAST_SERVE_TOKEN; if it is unset, one is created
    and printed.
    """
    import secrets

    from holdfast.core import settings
    from holdfast.core.errors import MissingExtra

    if write_rules is not None:
        from holdfast.serve.metrics.dashboard import write_rules as write

        for path in write(write_rules, f"{host}:{port}"):
            click.echo(path)
        return
    try:
        from holdfast.serve.live.job_pipe import JobPipe
        from holdfast.serve.live.watch import RunWatch
        from holdfast.serve.metrics.prometheus import collect_runs
        from holdfast.serve.web.access import is_loopback
        from holdfast.serve.web.application import create_application
        from holdfast.serve.web.server import open_socket
    except ModuleNotFoundError as error:
        raise MissingExtra("holdfast[serve]") from error
    base = runs or Path(str(settings.read_setting("HOLDFAST_RUN_DIR").value)).expanduser()
    watch = RunWatch(base, reports)
    token, created = settings.read_text("HOLDFAST_SERVE_TOKEN"), ""
    if token is None and not is_loopback(host):
        token = created = secrets.token_urlsafe(24)
    listener = open_socket(host, port)
    end_export = None
    if otlp is not None:
        try:
            from holdfast.serve.metrics.opentelemetry import start_export
        except ModuleNotFoundError as error:
            raise MissingExtra("holdfast[otel]") from error
        end_export = start_export(otlp, lambda: collect_runs(watch), every)
    page = f"{'metrics' if metrics_only else ''}{f'?token={created}' if created else ''}"
    click.echo(f"holdfast: {base} at {_address(host, listener)}/{page}", err=True)
    job = JobPipe(sys.stdout.buffer, sys.stdin.buffer) if until_eof else None
    ask = job.ask if job is not None else None
    try:
        _serve(create_application(watch, token, metrics_only=metrics_only, ask=ask), listener, job)
    finally:
        if end_export is not None:
            end_export()


def _address(host: str, listener: socket.socket) -> str:
    """Return the address to open; of all interfaces, that with the name of this host."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared only
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"


def _serve(application: Starlette, listener: socket.socket, job: JobPipe | None) -> None:
    import threading

    from holdfast.serve.web.server import make_server

    server = make_server(application)
    if job is not None:
        threading.Thread(target=_end_with, args=(job, server), daemon=True).start()
    server.run([listener])


def _end_with(job: JobPipe, server: uvicorn.Server) -> None:
    """End the server when the job that started it closes the pipe or dies."""
    job.read_answers()
    server.should_exit = True
