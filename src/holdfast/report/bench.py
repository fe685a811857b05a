"""Measurements as text: nccl-tests' table to the letter, percentiles, ways side by side, hosts and links, and CSV.

The table's form is that of ``src/util.cu`` in nccl-tests 2.19.6 (``writeResultHeader``, ``writeBenchmarkLineBody``,
``getFloatStr``), so that whatever reads its output reads this. Where a call has no such placement, N/A stands for it,
so that every line has all columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace

from holdfast.measured import DTYPES, TORCH, Host, Measurement, Pair, Row, Series, Timing, algbw, bus_share, busbw
from holdfast.measured.fit import Fit
from holdfast.report.text import encodable, one_line

_BLANK = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
_PLACEMENT = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
_UNITS = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
#: A blank ends each line, where nccl-tests has the column of its time stamps.
HEADER = (
    "#",
    f"{_BLANK}           out-of-place                       in-place          ",
    f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}{2 * _PLACEMENT} ",
    f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}{2 * _UNITS} ",
)
_CSV = ("collective", "way", "backend", "type", "redop", "root", "ranks", "size_bytes", "count", "placement", "calls",
        "mean_us", "min_us", "p50_us", "p90_us", "p99_us", "max_us", "algbw_GBps", "busbw_GBps", "wrong")  # fmt: skip
#: Pairs that are shown; a line says how many more there are.
_MOST_PAIRS = 12


def opening(series: Series, hosts: Sequence[Host] = ()) -> Iterator[str]:
    """The lines above a table: what it is of, and its head."""
    where = f", on {', '.join(one_line(host.name) for host in hosts)}" if hosts else ""
    yield f"# Collective test starting: {series.collective}_perf ({series.name}, {series.ranks} ranks{where})"
    yield from HEADER


def table_row(series: Series, row: Row) -> str:
    """One line of the table, as nccl-tests prints it."""
    name = DTYPES.get(series.dtype, (0, series.dtype))[1]
    line = f"{row.size_bytes:12d}  {row.count:12d}  {name:>8}  {series.op:>6}  {series.root:6d}"
    return line + "".join(_placement(series, row, timing) for timing in (row.out_of_place, row.in_place))


def closing(series: Series) -> Iterator[str]:
    """The lines below a table."""
    wrong = series.wrong
    yield f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# {'Avg bus bandwidth':<20} : {series.average_busbw:g} "
    yield "#"


def _placement(series: Series, row: Row, timing: Timing | None) -> str:
    if timing is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    alg = algbw(row.size_bytes, timing.mean_s)
    bus = alg * bus_share(series.collective, series.ranks)
    wrong = "N/A" if timing.wrong is None else f"{float(timing.wrong):g}"
    return f"  {_float(timing.mean_s * 1e6, 7):>7}  {_float(alg, 6):>6}  {_float(bus, 6):>6}  {wrong:>6}"


def _float(value: float, width: int) -> str:
    """The form with the most digits after the point that fits (``getFloatStr``)."""
    for form in (".2f", ".1f", ".0f"):
        if len(text := format(value, form)) <= width:
            return text
    return format(value, ".1e" if width >= 7 else ".0e")


class Printer:
    """Shows a measurement: rows as they end where there is one way (``live``), all else when it is over.

    Every line that nccl-tests would not print begins with ``#``, which its readers skip.
    """

    def __init__(self, file: TextIO, *, live: bool, quiet: bool = False) -> None:
        self._file, self._live, self._quiet = file, live, quiet
        self._open: Series | None = None
        self._wrong, self._rows = 0, 0

    def row(self, series: Series, row: Row) -> None:
        """A row has ended."""
        if not self._live or self._quiet:
            return
        if self._open is None or series.key != self._open.key:
            self._close()
            self._open = replace(series, rows=())
            self._say(opening(series))
        self._open = replace(self._open, rows=(*self._open.rows, row))
        self._say([table_row(series, row)])

    def _close(self) -> None:
        if self._open is not None:
            self._say(closing(self._open))

    def rest(self, measurement: Measurement, kept: Path | None) -> None:
        """The measurement is over: tables that were not shown, and what follows from them."""
        if self._live:
            self._close()
        else:
            for series in measurement.series:
                self._say([*opening(series), *(table_row(series, row) for row in series.rows), *closing(series)])
        for series in measurement.series:
            self._say(["", f"{series.name}: percentiles over all calls of all ranks", *percentiles(series)], "# ")
        for title, lines in (
            ("Ways side by side", side_by_side(measurement)),
            ("Latency and bandwidth (time = latency + bytes / bandwidth, by the medians)", fits(measurement)),
            ("Reached", reached(measurement)),
            ("Hosts and links", topology(measurement)),
        ):
            found = list(lines)
            if found:
                self._say(["", title, *found], "# ")
        if kept is not None:
            self._say(["", f"kept for limits of collectives in {kept}"], "# ")

    def _say(self, lines: Iterable[str], before: str = "") -> None:
        text = "".join(f"{before if line else before.rstrip()}{line}\n" for line in lines)
        self._file.write(encodable(text, self._file.encoding or "utf-8"))
        self._file.flush()


# ---- beside nccl-tests' table


def percentiles(series: Series) -> Iterator[str]:
    """A line for each size: percentiles of all calls of all ranks, in place where there is such a call."""
    yield f"{'size (B)':>12}  {'calls':>7}  {'min':>9}  {'p50':>9}  {'p90':>9}  {'p99':>9}  {'max':>9}   (us)"
    for row in series.rows:
        if (timing := row.timing) is not None:
            times = (timing.min_s, timing.p50_s, timing.p90_s, timing.p99_s, timing.max_s)
            yield f"{row.size_bytes:12d}  {timing.calls:7d}" + "".join(f"  {1e6 * each:9.1f}" for each in times)


def side_by_side(measurement: Measurement) -> Iterator[str]:
    """For each collective with several ways: medians of each, and how many times as fast as the first it is."""
    for collective, group in groupby(measurement.series, key=lambda each: each.collective):
        ways = list(group)
        if len(ways) < 2:
            continue
        names = [each.way if each.way != TORCH else f"{each.way} ({each.backend})" for each in ways]
        yield f"{collective}: median in us (times as fast as {names[0]})"
        yield f"{'size (B)':>12}" + "".join(f"  {name:>20}" for name in names)
        by_size = [{row.size_bytes: row.timing.p50_s for row in each.rows if row.timing} for each in ways]
        for size, base in by_size[0].items():
            cells = (f"{1e6 * each[size]:.1f} ({base / each[size]:.2f})" if size in each else "-" for each in by_size)
            yield f"{size:12d}" + "".join(f"  {cell:>20}" for cell in cells)


def fits(measurement: Measurement) -> Iterator[str]:
    """A line for each fit: latency and bandwidth with their intervals, and how well a line describes the times."""
    for each in measurement.fits:
        yield fit_sentence(each)


def fit_sentence(fit: Fit) -> str:
    """One fit, for people."""
    low, high = fit.latency_interval_s
    slow, fast = (f"{each / 1e9:.3g}" if each else "no end" for each in fit.bandwidth_interval)
    way = "" if fit.way == TORCH else f" by {fit.way}"
    return (
        f"{fit.collective} over {fit.backend}{way}: latency {time_text(fit.latency_s)} ({time_text(low)} to "
        f"{time_text(high)}), bandwidth {fit.bandwidth / 1e9:.3g} GB/s ({slow} to {fast}; 95 %), "
        f"off by at most {fit.worst_error:.0%}"
    )


def time_text(seconds: float) -> str:
    """A time to three digits, as benchmarks need it: ``1,620 µs``, ``12.3 ms``, ``2.01 s``."""
    if seconds < 10e-3:
        return f"{1e6 * seconds:,.0f} µs" if seconds >= 100e-6 else f"{1e6 * seconds:.3g} µs"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.3g} s"


def reached(measurement: Measurement) -> Iterator[str]:
    """For each series its best bandwidth on the bus, beside what the link can do."""
    for each in measurement.series:
        limit = measurement.limit(each)
        best = max((busbw(each.collective, row.size_bytes, row.timing.p50_s, each.ranks)
                    for row in each.rows if row.timing is not None), default=0.0)  # fmt: skip
        ratio = f", {best * 1e9 / limit:.0%} of {limit / 1e9:.3g} GB/s" if limit else ""
        yield f"{each.name}: at best {best:.3g} GB/s on the bus{ratio}"


def topology(measurement: Measurement) -> Iterator[str]:
    """Hosts with their ranks and links, and what was measured between pairs, the slowest first."""
    for number, host in enumerate(measurement.hosts):
        last = number == len(measurement.hosts) - 1 and not measurement.pairs
        ranks = ", ".join(map(str, host.ranks[:16])) + (" …" if len(host.ranks) > 16 else "")
        devices = f"; {len(host.devices)} GPUs" if host.devices else ""
        processor = one_line(host.processor) or "processor unknown"
        yield f"{'└' if last else '├'}─ {one_line(host.name)}: ranks {ranks} ({processor}, {host.cores} cores{devices})"
        rate = f"{host.line_rate / 1e9:.3g} GB/s: " if host.line_rate else "rate unknown: "
        link = f"{one_line(host.interface)}, " if host.interface else ""
        yield f"{' ' if last else '│'}    link: {link}{rate}{one_line(host.line)}"
    slowest = sorted(measurement.pairs, key=lambda pair: pair.bandwidth)
    for pair in slowest[:_MOST_PAIRS]:
        yield f"├─ {_pair(pair)}"
    if len(slowest) > _MOST_PAIRS:
        yield f"└─ and {len(slowest) - _MOST_PAIRS} faster pairs"


def _pair(pair: Pair) -> str:
    low, high = pair.ranks
    return f"rank {low} ── rank {high}: {time_text(pair.latency_s)}, {pair.bandwidth / 1e9:.3g} GB/s"


def as_csv(measurement: Measurement) -> str:
    """A line for each series, size and placement, in the units that the head names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)
    for each in measurement.series:
        for row in each.rows:
            for placement, timing in (("out-of-place", row.out_of_place), ("in-place", row.in_place)):
                if timing is not None:
                    writer.writerow(_cells(each, row, placement, timing))
    return out.getvalue()


def _cells(series: Series, row: Row, placement: str, timing: Timing) -> list[object]:
    times = (timing.mean_s, timing.min_s, timing.p50_s, timing.p90_s, timing.p99_s, timing.max_s)
    alg = algbw(row.size_bytes, timing.mean_s)
    return [
        series.collective, series.way, series.backend, series.dtype, series.op, series.root, series.ranks,
        row.size_bytes, row.count, placement, timing.calls, *(f"{1e6 * each:.3f}" for each in times), f"{alg:.6g}",
        f"{alg * bus_share(series.collective, series.ranks):.6g}", "" if timing.wrong is None else timing.wrong,
    ]  # fmt: skip
