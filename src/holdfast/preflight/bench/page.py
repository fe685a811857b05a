"""The HTML page of a measurement: one file without network access or scripts."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from markupsafe import Markup

from holdfast.core.findings import Verdict
from holdfast.core.measurements import BenchHost, LinkPair, Measurement, algbw, bus_share
from holdfast.core.text import format_precise_duration
from holdfast.preflight.bench import tables as bench_tables
from holdfast.report.html import template_environment, template_source
from holdfast.report.plot import HEIGHT, LEFT, RIGHT, WIDTH, make_plots, size_label

#: Maximum numbers of hosts and pairs drawn; a line counts the others.
_MAX_HOSTS, _MAX_PAIRS = 12, 66
_BOX_WIDTH, _BOX_HEIGHT, _GAP, _ARC = 190.0, 74.0, 46.0, 44.0


class PageBox(msgspec.Struct, frozen=True):
    """A host, or a rank if there is only one host, in the drawing of links."""

    x: float
    title: str
    below: str
    link: str


class PageArc(msgspec.Struct, frozen=True):
    """A measured link between two boxes: path, width by bandwidth, label; ``slowest`` of all."""

    path: str
    width: float
    text: str
    x: float
    y: float
    slowest: bool


def bench_page(measurement: Measurement, verdict: Verdict) -> str:
    """Return the page as text, to be written as UTF-8; everything is escaped."""
    collectives = list(dict.fromkeys(each.collective for each in measurement.series if each.rows))
    boxes, arcs, height, hidden = _links(measurement)
    worst = verdict.root or next(iter(verdict.suspects), None)
    return (
        template_environment()
        .get_template("bench.html")
        .render(
            style=Markup(template_source("incident.css") + template_source("bench.css")),  # noqa: S704 - own files
            measurement=measurement,
            verdict=verdict,
            tone="error" if verdict.root else "warning" if verdict.suspects else "fine",
            headline=worst.message if worst else _headline(measurement),
            at=datetime.fromtimestamp(measurement.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            if measurement.at
            else "",
            pictures=[(name, make_plots(measurement, name)) for name in collectives],
            tables=[
                (each, [_cells(measurement, number, row) for row in range(len(each.rows))])
                for number, each in enumerate(measurement.series)
            ],
            fits=[bench_tables.fit_sentence(fit) for fit in measurement.fits],
            reached=list(bench_tables.efficiency(measurement)),
            boxes=boxes,
            arcs=arcs,
            arcs_height=height,
            hidden=hidden,
            box=(_BOX_WIDTH, _BOX_HEIGHT),
            links_width=max(1, len(boxes)) * (_BOX_WIDTH + _GAP),
            frame=(WIDTH, HEIGHT, LEFT, RIGHT),
        )
        + "\n"
    )


def _headline(measurement: Measurement) -> str:
    ranks, hosts = measurement.ranks, len(measurement.hosts)
    where = (
        f"{hosts} hosts" if hosts > 1 else measurement.hosts[0].name if hosts else "unknown hosts"
    )
    names = ", ".join(dict.fromkeys(each.collective for each in measurement.series))
    return f"{names}: {ranks} ranks on {where}"


def _cells(measurement: Measurement, number: int, at: int) -> list[str]:
    series, row = measurement.series[number], measurement.series[number].rows[at]
    cells = [size_label(row.size_bytes)]
    for timing in (row.out_of_place, row.in_place):
        if timing is None:
            cells += ["–"] * 3  # noqa: RUF001 - an en dash
            continue
        alg = algbw(row.size_bytes, timing.mean_s)
        wrong = "not checked" if timing.wrong is None else f"{timing.wrong:,}"
        cells += [
            format_precise_duration(timing.mean_s),
            f"{alg * bus_share(series.collective, series.ranks):.3g}",
            wrong,
        ]
    timing = row.timing
    cells += (
        [format_precise_duration(each) for each in (timing.p50_s, timing.p90_s, timing.p99_s)]
        if timing
        else [""] * 3
    )
    return cells


# ---- hosts and links


def _links(measurement: Measurement) -> tuple[list[PageBox], list[PageArc], float, str]:
    """Return hosts (or ranks of a single host) side by side, and arcs for measured links."""
    hosts = measurement.hosts
    one = len(hosts) == 1
    members = [(rank,) for rank in hosts[0].ranks] if one else [host.ranks for host in hosts]
    shown = members[:_MAX_HOSTS]
    boxes = [
        PageBox(_x(at), *(_rank_labels(hosts[0], own[0]) if one else _host_labels(hosts[at])))
        for at, own in enumerate(shown)
    ]
    place = {rank: at for at, own in enumerate(shown) for rank in own}
    between: dict[tuple[int, int], list[LinkPair]] = {}
    for pair in measurement.pairs:
        ends = sorted(place.get(rank, -1) for rank in pair.ranks)
        if ends[0] >= 0 and ends[0] != ends[1]:
            between.setdefault((ends[0], ends[1]), []).append(pair)
    best = {ends: max(pairs, key=lambda pair: pair.bandwidth) for ends, pairs in between.items()}
    drawn = sorted(best.items(), key=lambda each: each[1].bandwidth)[:_MAX_PAIRS]
    reach = max((high - low for (low, high), _ in drawn), default=0)
    height = 46.0 + _ARC * reach if reach else 8.0
    max_bandwidth = max((pair.bandwidth for _, pair in drawn), default=1.0) or 1.0
    arcs = [
        _arc(ends, pair, height, max_bandwidth, slowest=number == 0 and len(drawn) > 1)
        for number, (ends, pair) in enumerate(drawn)
    ]
    more = len(members) - len(shown)
    return boxes, arcs, height, f"{more} more not drawn" if more else ""


def _host_labels(host: BenchHost) -> tuple[str, str, str]:
    ranks = (
        f"ranks {host.ranks[0]} to {host.ranks[-1]}"
        if len(host.ranks) > 1
        else f"rank {host.ranks[0]}"
    )
    gpus = f", {len(host.devices)} GPUs" if host.devices else ""
    rate = f"{host.line_rate / 1e9:.3g} GB/s" if host.line_rate else "rate unknown"
    return host.name, f"{ranks}, {host.cores} cores{gpus}", f"{host.interface or 'link'}: {rate}"


def _rank_labels(host: BenchHost, rank: int) -> tuple[str, str, str]:
    rate = f"memory: {host.line_rate / 1e9:.3g} GB/s" if host.line_rate and not host.devices else ""
    return f"rank {rank}", f"on {host.name}", rate


def _x(at: int) -> float:
    return _GAP / 2 + at * (_BOX_WIDTH + _GAP)


def _arc(
    ends: tuple[int, int], pair: LinkPair, height: float, max_bandwidth: float, *, slowest: bool
) -> PageArc:
    low, high = (_x(end) + _BOX_WIDTH / 2 for end in ends)
    low, high = low + 12, high - 12
    top = height - 12 - _ARC * (ends[1] - ends[0])
    control = top - (height - top) / 3
    return PageArc(
        path=(
            f"M {low:.0f} {height:.0f} C {low:.0f} {control:.0f}, {high:.0f} {control:.0f}, "
            f"{high:.0f} {height:.0f}"
        ),
        width=round(1.2 + 3.8 * pair.bandwidth / max_bandwidth, 1),
        text=f"{pair.bandwidth / 1e9:.3g} GB/s, {format_precise_duration(pair.latency_s)}",
        x=(low + high) / 2,
        y=(height + 3 * control) / 4 - 6,
        slowest=slowest,
    )
