"""``holdfast bench``: benchmark collectives and verify their results."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.general_options import (
    GroupedCommand,
    OutputFile,
    add_general_options,
    require_torch,
)
from holdfast.core.errors import InvalidValue, MissingFile, UnknownName

if TYPE_CHECKING:
    from holdfast.core.measurements import BenchRequest
    from holdfast.preflight.bench.session import BenchResult

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", re.IGNORECASE)


def _parse_size(option: str, text: str) -> int:
    """Parse ``8``, ``64K``, ``1.5M`` as bytes (units of 1,024, as in nccl-tests).

    Raises InvalidValue.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not 0 < size < 1 << 46:
        raise InvalidValue(
            option, why=f"{text!r} is not a size of at least one byte (use e.g. 8, 64K, 32M or 1G)"
        )
    return size


def _parse_seconds(option: str, text: str) -> float:
    """Parse ``90s``, ``2m``, ``30`` as seconds. Raises InvalidValue."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _TIMES[match[2]] if match else 0.0
    if not 0.1 <= seconds <= 86400:
        raise InvalidValue(
            option, why=f"{text!r} is not a duration from 0.1 s to 24 h (use e.g. 90s or 2m)"
        )
    return seconds


def _parse_share(text: str) -> float:
    """Parse ``10%`` or ``0.1`` as a fraction. Raises InvalidValue."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 10:
        raise InvalidValue("--tolerance", why=f"{text!r} is not a percentage (use e.g. 10%)")
    return share


def _parse_choices(
    kind: str, texts: tuple[str, ...], known: tuple[str, ...], default: tuple[str, ...]
) -> tuple[str, ...]:
    """Parse a repeatable option with comma-separated choices; ``all`` selects all."""
    words = [
        word.strip().casefold().replace("-", "_")
        for text in texts
        for word in text.split(",")
        if word.strip()
    ]
    by_word = {each.replace("-", "_"): each for each in known}
    for word in words:
        if word not in by_word and word != "all":
            raise UnknownName(kind, word, (*known, "all"))
    if "all" in words:
        return known
    return tuple(dict.fromkeys(by_word[word] for word in words)) or default


class _BenchCommand(GroupedCommand):
    """Measures collectives; ``scaling`` as the first word is a command of its own."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args[:1] != ["scaling"]:
            return super().make_context(info_name, args, parent, **extra)
        from holdfast.cli.bench_scaling import scaling

        add_general_options(scaling)
        return scaling.make_context(f"{info_name} scaling", args[1:], parent, **extra)


_OPTION_GROUPS = {
    "Sizes": "min-bytes max-bytes factor step-bytes",
    "Measurement": "nproc-per-node iters warmup dtype op root check way backend pairs limit",
    "Results": "baseline tolerance save json csv html",
}


@click.command(cls=_BenchCommand, groups=_OPTION_GROUPS)
@click.argument("collectives", metavar="[COLLECTIVE]...", nargs=-1)
@click.option(
    "--nproc-per-node",
    "ranks",
    metavar="N",
    type=click.IntRange(1, 1024),
    default=2,
    show_default=True,
    help="Ranks to start on this host; under a launcher, its own count is used.",
)
@click.option(
    "-b", "--min-bytes", metavar="SIZE", default="8", show_default=True, help="Smallest size."
)
@click.option(
    "-e",
    "--max-bytes",
    metavar="SIZE",
    default="32M",
    show_default=True,
    help="Largest size (K, M, G).",
)
@click.option(
    "-f",
    "--factor",
    type=float,
    default=4.0,
    show_default=True,
    help="Multiplication factor between sizes (nccl-tests: --stepfactor).",
)
@click.option(
    "-i", "--step-bytes", metavar="SIZE", help="Increase sizes by this many bytes instead."
)
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(1, 1_000_000),
    default=20,
    show_default=True,
    help="Timed calls per size.",
)
@click.option(
    "-w",
    "--warmup",
    type=click.IntRange(0, 100_000),
    default=5,
    show_default=True,
    help="Untimed warm-up calls per size.",
)
@click.option(
    "-d",
    "--dtype",
    metavar="TYPE",
    default="float32",
    show_default=True,
    help="Data type: float32, bfloat16, int64, …",
)
@click.option(
    "-o",
    "--op",
    metavar="OP",
    default="sum",
    show_default=True,
    help="Reduction: sum, prod, min, max or avg.",
)
@click.option(
    "-r",
    "--root",
    type=int,
    default=0,
    show_default=True,
    help="Root rank of broadcast and reduce.",
)
@click.option(
    "--check/--no-check",
    default=True,
    help="Verify every element of the results (default).",
)
@click.option(
    "--way",
    "algorithms",
    metavar="ALGORITHM",
    multiple=True,
    help="Algorithm: torch (default), holdfast, pieces, bf16, hierarchy, one-by-one, coalesced, "
    "or all. Repeatable.",
)
@click.option(
    "--backend",
    "backends",
    metavar="NAME",
    multiple=True,
    help="Backend: gloo or nccl. Repeatable, to compare both.",
)
@click.option("--pairs", is_flag=True, help="Also measure every pair of ranks.")
@click.option(
    "--limit",
    "limit",
    metavar="TIME",
    default="120s",
    show_default=True,
    help="Timeout of each call.",
)
@click.option(
    "--baseline", metavar="FILE", type=Path, help="Compare with a measurement written by --save."
)
@click.option(
    "--tolerance",
    metavar="SHARE",
    default="10%",
    show_default=True,
    help="Accepted slowdown relative to the baseline.",
)
@click.option(
    "--save",
    "save_file",
    metavar="FILE",
    type=OutputFile(),
    help="Write the measurement, to be used as a baseline.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=OutputFile(),
    help="Write a CSV file with one line per size.",
)
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    type=OutputFile(),
    help="Write an HTML report with plots.",
)
def command(**options: Any) -> int:
    """Benchmark collectives: latency, bandwidth, percentiles and correctness.

    Prints the tables of nccl-tests.

    COLLECTIVE: all_reduce (default), all_gather, reduce_scatter, broadcast, reduce, all_to_all,
    sendrecv, or all.

    Starts ranks on this host by default. Under torchrun, srun or holdfast run (torchrun … -m
    holdfast bench), each process is a rank.

    `holdfast bench scaling SCRIPT` measures a training script with 1, 2, 4 and 8 processes instead
    (holdfast bench scaling --help).
    """
    from holdfast.core import settings
    from holdfast.preflight.bench.session import run_bench
    from holdfast.preflight.bench.tables import TablePrinter
    from holdfast.report.terminal import render_verdict

    request = _build_request(options)
    _check_folders(options)
    require_torch()
    printer = TablePrinter(sys.stdout, live=len(request.algorithms) == 1, quiet=options["as_json"])
    result = run_bench(
        request,
        settings.current_environment(),
        ranks=options["ranks"],
        baseline=options["baseline"],
        tolerance=_parse_share(options["tolerance"]),
        on_row=printer.row,
    )
    if not result.prints:
        return 0
    _write(options, result)
    if not options["as_json"]:
        printer.finish(result.measurement, result.fits_file)
        render_verdict(result.verdict, file=sys.stdout)
    return result.exit_status


def _build_request(options: Mapping[str, Any]) -> BenchRequest:
    """Build the request from the options. Raises InvalidValue and UnknownName."""
    from holdfast.core.measurements import (
        ALGORITHMS,
        COLLECTIVES,
        DTYPES,
        OPS,
        TORCH_ALGORITHM,
        BenchRequest,
    )

    for kind, name, known in (
        ("dtype", options["dtype"], tuple(DTYPES)),
        ("operation", options["op"], OPS),
    ):
        if name not in known:
            raise UnknownName(kind, name, known)
    return BenchRequest(
        collectives=_parse_choices(
            "collective", options["collectives"], COLLECTIVES, COLLECTIVES[:1]
        ),
        algorithms=_parse_choices(
            "algorithm", options["algorithms"], tuple(ALGORITHMS), (TORCH_ALGORITHM,)
        ),
        backends=_parse_choices("backend", options["backends"], ("gloo", "nccl"), ()),
        min_bytes=_parse_size("--min-bytes", options["min_bytes"]),
        max_bytes=_parse_size("--max-bytes", options["max_bytes"]),
        step_bytes=_parse_size("--step-bytes", options["step_bytes"])
        if options["step_bytes"]
        else None,
        factor=options["factor"],
        iters=options["iters"],
        warmup=options["warmup"],
        dtype=options["dtype"],
        op=options["op"],
        root=options["root"],
        check=options["check"],
        pairs=options["pairs"],
        limit_s=_parse_seconds("--limit", options["limit"]),
    )


def _check_folders(options: Mapping[str, Any]) -> None:
    """Check that output files can be written, before measuring. Raises MissingFile."""
    for name in ("save_file", "csv_file", "html_file"):
        folder = Path(options[name] or ".").parent
        if not folder.is_dir():
            raise MissingFile(
                options[name], why="its folder does not exist", next_step="create the folder first"
            )


def _write(options: Mapping[str, Any], result: BenchResult) -> None:
    """Write the requested files and the JSON."""
    from holdfast.core.atomic_files import write_atomic
    from holdfast.report.json import envelope, write_json

    document = envelope("bench", result.findings, result.verdict, measurement=result.measurement)
    if options["save_file"]:
        write_json(options["save_file"], document)
    if options["as_json"]:
        write_json(sys.stdout, document)
    if options["csv_file"]:
        from holdfast.preflight.bench.tables import measurement_csv

        write_atomic(options["csv_file"], measurement_csv(result.measurement).encode())
    if options["html_file"]:
        from holdfast.preflight.bench.page import bench_page

        write_atomic(options["html_file"], bench_page(result.measurement, result.verdict).encode())
