"""Render measurements as text: nccl-tests' table, percentiles, comparisons, hosts, links and CSV.

The table has the exact form of ``src/util.cu`` in nccl-tests 2.19.6 (``writeResultHeader``,
``writeBenchmarkLineBody``, ``getFloatStr``), so that tools for its output can read this. An
unsupported placement is shown as N/A, so that every line has all columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace

from holdfast.core.measurements import (
    DTYPES,
    TORCH_ALGORITHM,
    BenchHost,
    BenchRow,
    BenchSeries,
    IterationTiming,
    LinkPair,
    Measurement,
    algbw,
    bus_share,
    busbw,
)
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.core.text import encodable, format_precise_duration, one_line

_BLANK = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
_PLACEMENT = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
_UNITS = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
#: Each line ends with a blank, where nccl-tests has the timestamp column.
HEADER = (
    "#",
    f"{_BLANK}           out-of-place                       in-place          ",
    f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}{2 * _PLACEMENT} ",
    f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}{2 * _UNITS} ",
)
_CSV = tuple(
    """
    collective way backend type redop root ranks size_bytes count placement calls mean_us min_us
    p50_us p90_us p99_us max_us algbw_GBps busbw_GBps wrong
    """.split()
)
#: Maximum number of pairs shown; a line counts the others.
_MAX_PAIRS = 12


def opening(series: BenchSeries, hosts: Sequence[BenchHost] = ()) -> Iterator[str]:
    """Yield the lines above a table: collective, ranks, hosts, and the header."""
    where = f", on {', '.join(one_line(host.name) for host in hosts)}" if hosts else ""
    yield (
        f"# Collective test starting: {series.collective}_perf ({series.name}, {series.ranks} "
        f"ranks{where})"
    )
    yield from HEADER


def table_row(series: BenchSeries, row: BenchRow) -> str:
    """Return one line of the table, as nccl-tests prints it."""
    name = DTYPES.get(series.dtype, (0, series.dtype))[1]
    line = f"{row.size_bytes:12d}  {row.count:12d}  {name:>8}  {series.op:>6}  {series.root:6d}"
    return line + "".join(
        _placement(series, row, timing) for timing in (row.out_of_place, row.in_place)
    )


def closing(series: BenchSeries) -> Iterator[str]:
    """Yield the lines below a table."""
    wrong = series.wrong
    yield f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# {'Avg bus bandwidth':<20} : {series.average_busbw:g} "
    yield "#"


def _placement(series: BenchSeries, row: BenchRow, timing: IterationTiming | None) -> str:
    if timing is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    alg = algbw(row.size_bytes, timing.mean_s)
    bus = alg * bus_share(series.collective, series.ranks)
    wrong = "N/A" if timing.wrong is None else f"{float(timing.wrong):g}"
    return (
        f"  {_format_float(timing.mean_s * 1e6, 7):>7}  {_format_float(alg, 6):>6}  "
        f"{_format_float(bus, 6):>6}  {wrong:>6}"
    )


def _format_float(value: float, width: int) -> str:
    """Format with the most decimal places that fit (``getFloatStr``)."""
    for form in (".2f", ".1f", ".0f"):
        if len(text := format(value, form)) <= width:
            return text
    return format(value, ".1e" if width >= 7 else ".0e")


class TablePrinter:
    """Prints a measurement: rows as they end if there is one algorithm (``live``), else at the end.

    Every line that nccl-tests would not print begins with ``#``, which its parsers skip.
    """

    def __init__(self, file: TextIO, *, live: bool, quiet: bool = False) -> None:
        self._file, self._live, self._quiet = file, live, quiet
        self._open: BenchSeries | None = None

    def row(self, series: BenchSeries, row: BenchRow) -> None:
        """Print a finished row."""
        if not self._live or self._quiet:
            return
        if self._open is None or series.key != self._open.key:
            self._close()
            self._open = replace(series, rows=())
            self._write(opening(series))
        self._open = replace(self._open, rows=(*self._open.rows, row))
        self._write([table_row(series, row)])

    def _close(self) -> None:
        if self._open is not None:
            self._write(closing(self._open))

    def finish(self, measurement: Measurement, fits_file: Path | None) -> None:
        """Print the remaining tables and the analysis."""
        if self._live:
            self._close()
        else:
            for series in measurement.series:
                self._write(
                    [
                        *opening(series),
                        *(table_row(series, row) for row in series.rows),
                        *closing(series),
                    ]
                )
        for series in measurement.series:
            self._write(
                [
                    "",
                    f"{series.name}: percentiles over all calls of all ranks",
                    *percentiles(series),
                ],
                "# ",
            )
        for title, lines in (
            ("Comparison of algorithms", side_by_side(measurement)),
            (
                (
                    "Latency and bandwidth (duration = latency + bytes / bandwidth, fitted to the "
                    "medians)"
                ),
                fits(measurement),
            ),
            ("Efficiency", efficiency(measurement)),
            ("Hosts and links", topology(measurement)),
        ):
            section = list(lines)
            if section:
                self._write(["", title, *section], "# ")
        if fits_file is not None:
            self._write(["", f"link measurements saved to {fits_file}"], "# ")

    def _write(self, lines: Iterable[str], before: str = "") -> None:
        text = "".join(f"{before if line else before.rstrip()}{line}\n" for line in lines)
        self._file.write(encodable(text, self._file.encoding or "utf-8"))
        self._file.flush()


# ---- additions to nccl-tests' table


def percentiles(series: BenchSeries) -> Iterator[str]:
    """Yield one line per size: percentiles over all calls of all ranks, in place if supported."""
    yield (
        f"{'size (B)':>12}  {'calls':>7}  {'min':>9}  {'p50':>9}  {'p90':>9}  {'p99':>9}  "
        f"{'max':>9}   (us)"
    )
    for row in series.rows:
        if (timing := row.timing) is not None:
            times = (timing.min_s, timing.p50_s, timing.p90_s, timing.p99_s, timing.max_s)
            yield f"{row.size_bytes:12d}  {timing.calls:7d}" + "".join(
                f"  {1e6 * each:9.1f}" for each in times
            )


def side_by_side(measurement: Measurement) -> Iterator[str]:
    """Yield, for collectives with several algorithms, medians and speedups over the first."""
    for collective, group in groupby(measurement.series, key=lambda each: each.collective):
        series = list(group)
        if len(series) < 2:
            continue
        names = [
            each.way if each.way != TORCH_ALGORITHM else f"{each.way} ({each.backend})"
            for each in series
        ]
        yield f"{collective}: median in us (speedup over {names[0]})"
        yield f"{'size (B)':>12}" + "".join(f"  {name:>20}" for name in names)
        by_size = [
            {row.size_bytes: row.timing.p50_s for row in each.rows if row.timing} for each in series
        ]
        for size, base in by_size[0].items():
            cells = (
                f"{1e6 * each[size]:.1f} ({base / each[size]:.2f})" if size in each else "-"
                for each in by_size
            )
            yield f"{size:12d}" + "".join(f"  {cell:>20}" for cell in cells)


def fits(measurement: Measurement) -> Iterator[str]:
    """Yield one line per fit."""
    for each in measurement.fits:
        yield fit_sentence(each)


def fit_sentence(fit: AlphaBetaFit) -> str:
    """Describe one fit with its intervals and its largest residual."""
    low, high = fit.latency_interval_s
    slowest, fastest = (f"{each / 1e9:.3g}" if each else "∞" for each in fit.bandwidth_interval)
    algorithm = "" if fit.way == TORCH_ALGORITHM else f" ({fit.way})"
    return (
        f"{fit.collective} over {fit.backend}{algorithm}: "
        f"latency {format_precise_duration(fit.latency_s)} "
        f"(95% CI: {format_precise_duration(low)}–{format_precise_duration(high)}), "  # noqa: RUF001
        f"bandwidth {fit.bandwidth / 1e9:.3g} GB/s "
        f"(95% CI: {slowest}–{fastest}), max residual {fit.worst_error:.0%}"  # noqa: RUF001
    )


def efficiency(measurement: Measurement) -> Iterator[str]:
    """Yield for each series its peak bus bandwidth and the share of the link's bandwidth."""
    for each in measurement.series:
        limit = measurement.limit(each)
        best = max(
            (
                busbw(each.collective, row.size_bytes, row.timing.p50_s, each.ranks)
                for row in each.rows
                if row.timing is not None
            ),
            default=0.0,
        )
        ratio = f", {best * 1e9 / limit:.0%} of the {limit / 1e9:.3g} GB/s link" if limit else ""
        yield f"{each.name}: peak bus bandwidth {best:.3g} GB/s{ratio}"


def topology(measurement: Measurement) -> Iterator[str]:
    """Yield hosts with their ranks and links, then measured pairs, slowest first."""
    for number, host in enumerate(measurement.hosts):
        last = number == len(measurement.hosts) - 1 and not measurement.pairs
        ranks = ", ".join(map(str, host.ranks[:16])) + (" …" if len(host.ranks) > 16 else "")
        devices = f"; {len(host.devices)} GPUs" if host.devices else ""
        processor = one_line(host.processor) or "unknown CPU"
        branch = "└" if last else "├"
        yield (
            f"{branch}─ {one_line(host.name)}: ranks {ranks} "
            f"({processor}, {host.cores} cores{devices})"
        )
        rate = f"{host.line_rate / 1e9:.3g} GB/s: " if host.line_rate else "rate unknown: "
        link = f"{one_line(host.interface)}, " if host.interface else ""
        yield f"{' ' if last else '│'}    link: {link}{rate}{one_line(host.line)}"
    slowest = sorted(measurement.pairs, key=lambda pair: pair.bandwidth)
    for pair in slowest[:_MAX_PAIRS]:
        yield f"├─ {_pair(pair)}"
    if len(slowest) > _MAX_PAIRS:
        yield f"└─ and {len(slowest) - _MAX_PAIRS} faster pairs"


def _pair(pair: LinkPair) -> str:
    low, high = pair.ranks
    return (
        f"rank {low} ── rank {high}: {format_precise_duration(pair.latency_s)}, "
        f"{pair.bandwidth / 1e9:.3g} GB/s"
    )


def measurement_csv(measurement: Measurement) -> str:
    """Return CSV with one line per series, size and placement; the header names the units."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)
    for each in measurement.series:
        for row in each.rows:
            for placement, timing in (
                ("out-of-place", row.out_of_place),
                ("in-place", row.in_place),
            ):
                if timing is not None:
                    writer.writerow(_cells(each, row, placement, timing))
    return out.getvalue()


def _cells(
    series: BenchSeries, row: BenchRow, placement: str, timing: IterationTiming
) -> list[object]:
    times = (timing.mean_s, timing.min_s, timing.p50_s, timing.p90_s, timing.p99_s, timing.max_s)
    alg = algbw(row.size_bytes, timing.mean_s)
    return [
        series.collective,
        series.way,
        series.backend,
        series.dtype,
        series.op,
        series.root,
        series.ranks,
        row.size_bytes,
        row.count,
        placement,
        timing.calls,
        *(f"{1e6 * each:.3f}" for each in times),
        f"{alg:.6g}",
        f"{alg * bus_share(series.collective, series.ranks):.6g}",
        "" if timing.wrong is None else timing.wrong,
    ]
