"""Render the reachability matrix, the slowest links and the clock offsets for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec

from holdfast.core.text import format_duration, one_line, pluralize
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document

#: Larger matrices do not fit a terminal; the findings and the JSON contain everything.
MAX_SHOWN = 40


class HostPair(msgspec.Struct, frozen=True, kw_only=True):
    """A measured link; speeds in bytes/s."""

    ends: str
    round_trip_s: float | None
    forth: float | None
    back: float | None


class HostMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """``rows``: one letter per target; ``legend``: their meaning.

    ``clocks``: host -> seconds ahead.
    """

    labels: tuple[str, ...]
    rows: tuple[str, ...]
    legend: Mapping[str, str]
    pairs: tuple[HostPair, ...] = ()
    clocks: Mapping[str, tuple[float, float]] = {}


def render_hosts(matrix: HostMatrix, *, file: TextIO, width: int | None = None) -> None:
    """Print the matrix; nothing for fewer than two hosts."""
    if len(matrix.labels) < 2:
        return
    used = sorted(set("".join(matrix.rows)) - {"-"})
    sections = [
        ReportSection("reach", tuple(_matrix_rows(matrix))),
        ReportSection(
            "legend",
            (ReportRow(", ".join(f"{letter} {matrix.legend.get(letter, '')}" for letter in used)),),
        ),
        ReportSection("slowest", tuple(_pair_row(each) for each in _slowest(matrix.pairs))),
        ReportSection("clocks", tuple(_clock_rows(matrix.clocks))),
    ]
    headline = (
        f"{pluralize(len(matrix.labels), 'host')} connected, "
        f"{pluralize(len(matrix.pairs), 'link')} measured"
    )
    shown = tuple(section for section in sections if section.rows)
    draw_document(ReportDocument("", headline, "plain", shown, framed=False), file, width)


def _matrix_rows(matrix: HostMatrix) -> list[ReportRow]:
    if len(matrix.labels) > MAX_SHOWN:
        faulty = sum(letter not in ".-" for row in matrix.rows for letter in row)
        return [
            ReportRow(
                f"{faulty:,} of {len(matrix.rows) ** 2:,} pairs are not open; use --json for all "
                "pairs"
            )
        ]
    return [
        ReportRow(f"{' '.join(row)}  {one_line(label)}", style="path")
        for label, row in zip(matrix.labels, matrix.rows, strict=True)
    ]


def _slowest(pairs: Sequence[HostPair]) -> list[HostPair]:
    """Return the three slowest pairs."""
    measured = [each for each in pairs if each.forth and each.back]
    return sorted(measured, key=lambda each: min(each.forth or 0, each.back or 0))[:3]


def _pair_row(pair: HostPair) -> ReportRow:
    trip = (
        f"round trip {format_duration(pair.round_trip_s)}, "
        if pair.round_trip_s is not None
        else ""
    )
    return ReportRow(
        f"{one_line(pair.ends)}: {trip}{_format_rate(pair.forth)} forth, {_format_rate(pair.back)} "
        "back"
    )


def _format_rate(speed: float | None) -> str:
    return "unknown" if speed is None else f"{speed * 8 / 1e9:.2f} Gbit/s"


def _clock_rows(clocks: Mapping[str, tuple[float, float]]) -> list[ReportRow]:
    if not clocks:
        return []
    host = max(clocks, key=lambda each: abs(clocks[each][0]))
    ahead, within = clocks[host]
    return [
        ReportRow(
            f"{one_line(host)} differs most from the leader's clock: {ahead * 1e3:+.2f} ms "
            f"± {within * 1e3:.2f} ms"
        )
    ]
