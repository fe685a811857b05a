"""Judge measurements: correctness, comparison with a baseline, and share of the line rate; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from holdfast.causes.network.slow_link import SLOW_LINK
from holdfast.causes.numerics.collective_result_wrong import COLLECTIVE_RESULT_WRONG
from holdfast.causes.performance.collectives_below_line_rate import COLLECTIVES_BELOW_LINE_RATE
from holdfast.causes.performance.collectives_slower_than_before import (
    COLLECTIVES_SLOWER_THAN_BEFORE,
)
from holdfast.causes.remedies import automatic
from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.core.measurements import (
    BenchHost,
    BenchRequest,
    BenchRow,
    BenchSeries,
    LinkPair,
    Measurement,
    busbw,
)
from holdfast.core.text import format_precise_duration

#: Messages up to the first size show latency, from the second on bandwidth.
_SMALL_BYTES, _LARGE_BYTES = 64 << 10, 1 << 20
#: Below this share of the link's bandwidth, a note is reported.
FAR_BELOW = 0.5
#: Minimum number of sizes for a statement about small or large messages.
_FEW_SIZES = 2
#: Minimum number of pairs for a statement about one of them.
_FEW_PAIRS = 3


def judge(
    now: Measurement, before: Measurement | None = None, tolerance: float = 0.1
) -> Iterator[Finding]:
    """Yield errors for wrong results and for a slowdown beyond ``tolerance``, then notes."""
    for series in now.series:
        if series.wrong:
            yield _wrong(series)
    if before is not None:
        yield from _slower(now, before, tolerance)
    yield from _slow_pairs(now)
    yield from _below(now)


def refuse_unlike(before: Measurement, request: BenchRequest, ranks: int) -> None:
    """Check before measuring that a baseline is comparable.

    Raises:
        InvalidValue: it has another number of ranks, or none of the collectives.
    """
    if before.ranks != ranks:
        why = f"it was measured with {before.ranks} ranks, not {ranks}"
        raise InvalidValue(
            "the baseline",
            why=why,
            next_step=f"use --nproc-per-node {before.ranks}, or create a new baseline",
        )
    if not {each.collective for each in before.series} & set(request.collectives):
        why = f"it does not contain {', '.join(request.collectives)}"
        raise InvalidValue("the baseline", why=why, next_step="create one with these collectives")


def _slower(now: Measurement, before: Measurement, tolerance: float) -> Iterator[Finding]:
    _same_machines(now, before)
    old = {series.key: series for series in before.series}
    compared = 0
    for series in now.series:
        other = old.get(series.key)
        if other is None:
            continue
        compared += 1
        rows = {row.size_bytes: row for row in other.rows}
        pairs = [(row, rows[row.size_bytes]) for row in series.rows if row.size_bytes in rows]
        for words, least, most in (
            ("up to 64 KiB", 0, _SMALL_BYTES),
            ("from 1 MiB on", _LARGE_BYTES, 1 << 62),
        ):
            alike = [(new, was) for new, was in pairs if least <= new.size_bytes <= most]
            finding = _compared(series, alike, words, tolerance)
            if finding is not None:
                yield finding
    if not compared:
        raise InvalidValue(
            "the baseline",
            why="it contains none of these collectives, algorithms and dtypes",
            next_step="measure what it contains, or create a new baseline",
        )


def _same_machines(now: Measurement, before: Measurement) -> None:
    """Raise InvalidValue if the machines differ in kind; host names may differ."""
    kinds = [
        sorted((host.processor, host.cores, host.devices, len(host.ranks)) for host in each.hosts)
        for each in (now, before)
    ]
    if now.ranks == before.ranks and kinds[0] == kinds[1]:
        return
    here, there = (
        "; ".join(
            f"{host.name}: {host.processor or 'unknown CPU'}, {host.cores} cores, "
            f"{len(host.devices)} GPUs, {len(host.ranks)} ranks"
            for host in each.hosts[:4]
        )
        for each in (now, before)
    )
    why = f"it was measured on other machines ({there}), not on these ({here})"
    raise InvalidValue("the baseline", why=why, next_step="create a baseline on these machines")


def _compared(
    series: BenchSeries, alike: list[tuple[BenchRow, BenchRow]], words: str, tolerance: float
) -> Finding | None:
    """Compare the medians; a size counts as proof only if its minimum exceeds the old median."""
    ratios = [
        (new.timing.p50_s / was.timing.p50_s, new.timing.min_s > was.timing.p50_s)
        for new, was in alike
        if new.timing and was.timing and was.timing.p50_s > 0
    ]
    if not ratios:
        return None
    ratio = statistics.median(each for each, _ in ratios)
    if ratio <= 1 + tolerance:
        return None
    longer = f"{ratio - 1:.0%} longer than" if ratio < 2 else f"{ratio:.1f} times as long as"
    beyond_noise = sum(apart for _, apart in ratios) / len(ratios)
    new, was = max(alike, key=lambda pair: pair[0].size_bytes)
    figures = " (" + ", was ".join(_figure(series, row) for row in (new, was)) + ")"
    return make_finding(
        COLLECTIVES_SLOWER_THAN_BEFORE,
        f"{series.name} takes {longer} in the baseline for messages {words}{figures}",
        level=Level.ERROR,
        evidence=tuple(
            Fact(
                text=f"{row.size_bytes:,} bytes: median "
                f"{format_precise_duration(row.timing.p50_s)}, "
                f"baseline {format_precise_duration(then.timing.p50_s)}",
                origin="holdfast bench and its baseline",
            )
            for row, then in alike
            if row.timing and then.timing
        ),
        confidence=round(
            min(0.95, 0.5 + 0.4 * beyond_noise + 0.05 * (len(ratios) >= _FEW_SIZES)), 2
        ),
    )


def _figure(series: BenchSeries, row: BenchRow) -> str:
    taken = row.timing.p50_s if row.timing else 0.0
    if row.size_bytes < _LARGE_BYTES:
        return f"{format_precise_duration(taken)} for {row.size_bytes:,} bytes"
    return f"{busbw(series.collective, row.size_bytes, taken, series.ranks):.3g} GB/s bus bandwidth"


def _wrong(series: BenchSeries) -> Finding:
    rows = [
        row
        for row in series.rows
        if any(timing and timing.wrong for timing in (row.out_of_place, row.in_place))
    ]
    return make_finding(
        COLLECTIVE_RESULT_WRONG,
        f"{series.name} produced {series.wrong:,} incorrect elements, first at "
        f"{rows[0].size_bytes:,} bytes: training over this link is incorrect too",
        evidence=tuple(
            Fact(
                text=f"incorrect elements at {row.size_bytes:,} bytes",
                origin="holdfast bench, element-wise comparison with the expected result",
            )
            for row in rows
        ),
    )


def _slow_pairs(now: Measurement) -> Iterator[Finding]:
    """Compare pairs in a host, and pairs of hosts, with the median of their kind."""
    place = {rank: host for host in now.hosts for rank in host.ranks}
    kinds: dict[bool, list[LinkPair]] = {True: [], False: []}
    for pair in now.pairs:
        first, second = (place.get(rank) for rank in pair.ranks)
        kinds[first is second].append(pair)
    for pairs in kinds.values():
        if len(pairs) < _FEW_PAIRS:
            continue
        usual = statistics.median(pair.bandwidth for pair in pairs)
        slow = sorted(
            (pair for pair in pairs if pair.bandwidth < FAR_BELOW * usual),
            key=lambda pair: pair.bandwidth,
        )
        if slow:
            yield _slow_pair_finding(slow, usual, len(pairs), place)


def _slow_pair_finding(
    slow: list[LinkPair], usual: float, count: int, place: Mapping[int, BenchHost]
) -> Finding:
    common = set.intersection(*(set(pair.ranks) for pair in slow))
    ends = [_describe_rank(rank, place) for rank in slow[0].ranks]
    subject = f"the link between {ends[0]} and {ends[1]}"
    if len(slow) > 1 and len(common) == 1:
        subject = f"{len(slow)} links of {_describe_rank(common.pop(), place)}"
    elif len(slow) > 1:
        subject += f" and {len(slow) - 1} more"
    hosts = sorted({place[rank].name for rank in slow[0].ranks if rank in place})
    return make_finding(
        SLOW_LINK,
        f"{subject}: {slow[0].bandwidth / 1e9:.3g} GB/s, but {usual / 1e9:.3g} in the median of "
        f"{count} pairs",
        level=Level.WARNING,
        subject=Subject(host=hosts[0] if len(hosts) == 1 else None, link=" - ".join(ends)),
        evidence=tuple(
            Fact(
                text=f"ranks {pair.ranks[0]} and {pair.ranks[1]}: {pair.bandwidth / 1e9:.3g} GB/s",
                origin="holdfast bench --pairs",
            )
            for pair in slow[:8]
        ),
        confidence=0.8,
        remedies=(
            automatic(
                "Check the link at both ends.",
                "nvidia-smi topo -m; nvidia-smi nvlink -s"
                if len(hosts) == 1
                else "holdfast check --only interfaces --only infiniband  # on "
                + " and ".join(hosts),
            ),
        ),
    )


def _describe_rank(rank: int, place: Mapping[int, BenchHost]) -> str:
    host = place.get(rank)
    return f"rank {rank}" if host is None else f"rank {rank} ({host.name})"


def _below(now: Measurement) -> Iterator[Finding]:
    if now.ranks < 2 or not now.hosts:
        return
    slowest = min(now.hosts, key=lambda host: host.line_rate or 0)
    large = [
        (
            busbw(series.collective, row.size_bytes, row.timing.p50_s, now.ranks) * 1e9 / limit,
            limit,
            series,
        )
        for series in now.series
        if (limit := now.limit(series)) and (slowest.interface or series.backend == "nccl")
        for row in series.rows
        if row.timing is not None and row.size_bytes >= _LARGE_BYTES and row.timing.p50_s > 0
    ]  # sockets never approach memory-copy speed, so that is not reported
    if not large:
        return
    share, limit, series = max(large, key=lambda each: each[0])
    if share < FAR_BELOW:
        yield make_finding(
            COLLECTIVES_BELOW_LINE_RATE,
            f"{series.name}, the fastest series, reached {share:.0%} of the {limit / 1e9:.3g} GB/s "
            f"of {slowest.name}'s link",
            level=Level.NOTE,
            subject=Subject(host=slowest.name, link=slowest.interface or None),
            evidence=(
                Fact(text=f"{limit / 1e9:.3g} GB/s", origin=slowest.line, host=slowest.name),
            ),
            confidence=0.6,
        )
