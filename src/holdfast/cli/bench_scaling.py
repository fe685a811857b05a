"""``holdfast bench scaling``: run a script with more and more processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.core.errors import InvalidValue, MissingFile

if TYPE_CHECKING:
    from holdfast.preflight.bench.scaling import Rung, ScalingRequest, ScalingResult

_MOST = 1024
_HEADER = "processes   steps/s   throughput   efficiency   memory      GPU memory"


def _parse_ladder(text: str) -> tuple[int, ...]:
    """Parse ``1,2,4,8``. Raises InvalidValue."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word[:5]) <= _MOST for word in words):
        raise InvalidValue(
            "--processes", why=f"{text!r} is not a list of numbers (use e.g. 1,2,4,8)"
        )
    return tuple(sorted({int(word) for word in words}))


@click.command()
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", metavar="[-- ARGUMENT...]", nargs=-1)
@click.option(
    "--processes",
    "ladder",
    metavar="N,N",
    default="1,2,4,8",
    show_default=True,
    help="Numbers of processes; more than the GPUs of this host are left out.",
)
@click.option(
    "--warmup",
    type=click.IntRange(0, 1_000_000),
    default=10,
    show_default=True,
    help="Steps that are not measured.",
)
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    default="20s",
    show_default=True,
    help="Time to measure each number of processes, if the script does not end before.",
)
@click.option(
    "--within",
    metavar="TIME",
    default="5m",
    show_default=True,
    help="Time limit of start and warm-up.",
)
@click.option(
    "--batch",
    "batch",
    type=click.Choice(("process", "global")),
    default="process",
    show_default=True,
    help="What the script's batch size is: that of each process, or divided among all.",
)
@click.option(
    "--run-dir",
    metavar="DIR",
    type=Path,
    help="Folder of the runs with their logs (default: holdfast-runs/scaling-TIME).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def scaling(**options: Any) -> int:
    """Run SCRIPT with 1, 2, 4 and 8 processes: throughput, efficiency, memory, first failure.

    The script is unchanged: steps are counted by the recorder of `holdfast run`. Efficiency is the
    throughput per process, relative to the smallest number. The ladder ends at the first number of
    processes that fails, and the verdict names the cause. Exit status: 0, or 1 if one failed.
    """
    from holdfast.cli.progress import RungProgress
    from holdfast.core import settings
    from holdfast.preflight.bench.scaling import run_ladder

    request, as_json = _build_request(options), options["as_json"]
    if not as_json:
        click.echo(_HEADER)
    with RungProgress(sys.stderr) as progress:
        result = run_ladder(
            request,
            settings.current_environment(),
            on_rung=lambda rung: None if as_json else click.echo(_row(rung)),
            on_progress=progress.tell,
        )
    if as_json:
        _write_json(result, options["batch"])
    else:
        _print_summary(result, request)
    return result.exit_status


def _build_request(options: Mapping[str, Any]) -> ScalingRequest:
    """Build the request from the options. Raises InvalidValue and MissingFile."""
    from holdfast.core import settings
    from holdfast.preflight.bench.scaling import ScalingRequest

    if not Path(options["script"]).exists():
        raise MissingFile(options["script"])
    folder = options["run_dir"]
    if folder is None:
        parent = settings.read_path("HOLDFAST_RUN_DIR") or Path("holdfast-runs")
        folder = parent / time.strftime("scaling-%Y%m%d-%H%M%S")
    return ScalingRequest(
        script=options["script"],
        arguments=options["arguments"],
        processes=_parse_ladder(options["ladder"]),
        warmup=options["warmup"],
        seconds=_parse_time("--for", options["duration"]),
        within_s=_parse_time("--within", options["within"]),
        global_batch=options["batch"] == "global",
        folder=folder.absolute(),
    )


def _write_json(result: ScalingResult, batch: str) -> None:
    from holdfast.report.json import envelope, write_json

    verdict = result.verdict
    findings = (verdict.root, *verdict.consequences) if verdict.root is not None else ()
    document = envelope(
        "bench scaling",
        findings,
        verdict,
        ladder=result.rungs,
        first_failure=result.first_failure,
        threads=result.threads,
        batch=batch,
    )
    write_json(sys.stdout, document)


def _print_summary(result: ScalingResult, request: ScalingRequest) -> None:
    from holdfast.core.text import pluralize
    from holdfast.report.terminal import render_verdict

    unit = "global batches" if request.global_batch else "batches of one process"
    click.echo(
        f"\nthroughput in {unit} per second; OMP_NUM_THREADS={result.threads}; "
        f"runs: {request.folder}"
    )
    failed = result.first_failure
    if failed is not None:
        click.echo(f"first failure: {pluralize(failed.processes, 'process')}: {failed.failure}\n")
    if result.verdict.root is not None or result.verdict.unseen:
        render_verdict(result.verdict, file=sys.stdout)


def _parse_time(option: str, text: str) -> float:
    from holdfast.core.settings import parse_time

    seconds = parse_time(text)
    if not seconds:
        raise InvalidValue(option, why=f"{text!r} is not a duration (use e.g. 90s or 2m)")
    return seconds


def _row(rung: Rung) -> str:
    """Return the line of the table."""
    from holdfast.report.evidence_summary import size_text

    if rung.throughput is None or rung.steps_per_s is None or rung.efficiency is None:
        return f"{rung.processes:9}   failed"
    host, gpu = (
        "-" if size is None else size_text(size)
        for size in (rung.memory_bytes, rung.gpu_memory_bytes)
    )
    return (
        f"{rung.processes:9}   {rung.steps_per_s:7.2f}   {rung.throughput:10.2f}   "
        f"{rung.efficiency:9.0%}   {host:<9}   {gpu}"
    )
