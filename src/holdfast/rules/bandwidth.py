"""Are collectives right, as fast as they were, and near to what the link can do? Pure: measurements to findings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from holdfast.errors import BadValue
from holdfast.findings import Fact, Finding, Level, Subject, finding
from holdfast.measured import Measurement, Row, Series, Wish, busbw
from holdfast.report.bench import time_text
from holdfast.rules.causes import by_name

#: Messages up to this tell of latency, from that on of bandwidth.
_SMALL_BYTES, _LARGE_BYTES = 64 << 10, 1 << 20
#: Less than this share of what the link can do is worth a note.
FAR_BELOW = 0.5
#: Fewer sizes of a kind than this are too few to speak of it as a whole; fewer calls tell nothing of noise.
_FEW_SIZES = 2


def judge(now: Measurement, before: Measurement | None = None, tolerance: float = 0.1) -> Iterator[Finding]:
    """An error for wrong results, and for what is slower than before by more than ``tolerance``; notes for the rest."""
    for series in now.series:
        if series.wrong:
            yield _wrong(series)
    if before is not None:
        yield from _slower(now, before, tolerance)
    yield from _below(now)


def refuse_unlike(before: Measurement, wish: Wish, ranks: int) -> None:
    """See, before time is spent, that a baseline can be compared at all.

    Raises:
        BadValue: it is of another number of ranks, or has none of the collectives.
    """
    if before.ranks != ranks:
        why = f"it was measured with {before.ranks} ranks, and this is with {ranks}"
        raise BadValue("the baseline", why=why, next_step=f"give --nproc-per-node {before.ranks}, or make a new one")
    if not {each.collective for each in before.series} & set(wish.collectives):
        why = f"it has no {', '.join(wish.collectives)}"
        raise BadValue("the baseline", why=why, next_step="make one of these collectives")


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
        for words, least, most in (("up to 64 KiB", 0, _SMALL_BYTES), ("from 1 MiB on", _LARGE_BYTES, 1 << 62)):
            alike = [(new, was) for new, was in pairs if least <= new.size_bytes <= most]
            found = _compared(series, alike, words, tolerance)
            if found is not None:
                yield found
    if not compared:
        raise BadValue("the baseline", why="it has none of these collectives, ways and dtypes",
                       next_step="measure what it has, or make a new one")  # fmt: skip


def _same_machines(now: Measurement, before: Measurement) -> None:
    """Raises BadValue where the two were measured on different kinds of machines; hosts may have other names."""
    kinds = [sorted((host.processor, host.cores, host.devices, len(host.ranks)) for host in each.hosts)
             for each in (now, before)]  # fmt: skip
    if now.ranks == before.ranks and kinds[0] == kinds[1]:
        return
    here, there = (
        "; ".join(f"{host.name}: {host.processor or 'a processor'}, {host.cores} cores, {len(host.devices)} GPUs, "
                  f"{len(host.ranks)} ranks" for host in each.hosts[:4])
        for each in (now, before)
    )  # fmt: skip
    why = f"it was measured on other machines ({there}) than these ({here})"
    raise BadValue("the baseline", why=why, next_step="make a baseline of these machines")


def _compared(series: Series, alike: list[tuple[Row, Row]], words: str, tolerance: float) -> Finding | None:
    """By the medians of all calls; a size whose quicker half now is as quick as the slower half was, is no proof."""
    ratios = [(new.timing.p50_s / was.timing.p50_s, new.timing.min_s > was.timing.p50_s)
              for new, was in alike if new.timing and was.timing and was.timing.p50_s > 0]  # fmt: skip
    if not ratios:
        return None
    ratio = statistics.median(each for each, _ in ratios)
    if ratio <= 1 + tolerance:
        return None
    longer = f"{ratio - 1:.0%} longer than" if ratio < 2 else f"{ratio:.1f} times as long as"
    beyond_noise = sum(apart for _, apart in ratios) / len(ratios)
    new, was = max(alike, key=lambda pair: pair[0].size_bytes)
    figures = " (" + ", was ".join(_figure(series, row) for row in (new, was)) + ")"
    return finding(
        by_name("collectives-slower-than-before"),
        f"{series.name} takes {longer} in the baseline for messages {words}{figures}",
        level=Level.ERROR,
        evidence=tuple(
            Fact(text=f"{row.size_bytes:,} bytes: median {time_text(row.timing.p50_s)}, was "
                      f"{time_text(then.timing.p50_s)}", origin="holdfast bench and its baseline")
            for row, then in alike if row.timing and then.timing
        ),
        confidence=round(min(0.95, 0.5 + 0.4 * beyond_noise + 0.05 * (len(ratios) >= _FEW_SIZES)), 2),
    )  # fmt: skip


def _figure(series: Series, row: Row) -> str:
    taken = row.timing.p50_s if row.timing else 0.0
    if row.size_bytes < _LARGE_BYTES:
        return f"{time_text(taken)} for {row.size_bytes:,} bytes"
    return f"{busbw(series.collective, row.size_bytes, taken, series.ranks):.3g} GB/s on the bus"


def _wrong(series: Series) -> Finding:
    rows = [row for row in series.rows
            if any(timing and timing.wrong for timing in (row.out_of_place, row.in_place))]  # fmt: skip
    return finding(
        by_name("collective-result-wrong"),
        f"{series.name} gave {series.wrong:,} wrong elements, first at {rows[0].size_bytes:,} bytes: what is trained "
        "over this link is wrong, too",
        evidence=tuple(Fact(text=f"wrong elements at {row.size_bytes:,} bytes", origin="holdfast bench, each element "
                            "compared with what it has to be") for row in rows),
    )  # fmt: skip


def _below(now: Measurement) -> Iterator[Finding]:
    if now.ranks < 2 or not now.hosts:
        return
    slowest = min(now.hosts, key=lambda host: host.line_rate or 0)
    large = [
        (busbw(series.collective, row.size_bytes, row.timing.p50_s, now.ranks) * 1e9 / limit, limit, series)
        for series in now.series
        if (limit := now.limit(series)) and (slowest.interface or series.backend == "nccl")
        for row in series.rows
        if row.timing is not None and row.size_bytes >= _LARGE_BYTES and row.timing.p50_s > 0
    ]  # fmt: skip - over memory nothing that goes through sockets comes near to a copy, and that is no news
    if not large:
        return
    share, limit, series = max(large, key=lambda each: each[0])
    if share < FAR_BELOW:
        yield finding(
            by_name("collectives-below-line-rate"),
            f"{series.name} was the fastest and reached {share:.0%} of {limit / 1e9:.3g} GB/s, which the link of "
            f"{slowest.name} could do",
            level=Level.NOTE,
            subject=Subject(host=slowest.name, link=slowest.interface or None),
            evidence=(Fact(text=f"{limit / 1e9:.3g} GB/s", origin=slowest.line, host=slowest.name),),
            confidence=0.6,
        )
