"""The picture of a set of hosts for the terminal: who gets through to whom, how fast, and whose clock is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec

from holdfast.report.document import Document, Row, Section
from holdfast.report.text import duration, one_line, plural

#: A larger picture fills no terminal; the findings and the JSON have all of it.
MOST_SHOWN = 40


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A link that was measured; speeds in bytes a second."""

    ends: str
    round_trip_s: float | None
    forth: float | None
    back: float | None


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """``rows``: a letter a target; ``legend`` says what the letters mean; ``clocks``: host -> seconds ahead."""

    labels: tuple[str, ...]
    rows: tuple[str, ...]
    legend: Mapping[str, str]
    pairs: tuple[Pair, ...] = ()
    clocks: Mapping[str, tuple[float, float]] = {}


def render_hosts(picture: Picture, *, file: TextIO, width: int | None = None) -> None:
    """Print it; nothing where fewer than two hosts met."""
    if len(picture.labels) < 2:
        return
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    used = sorted(set("".join(picture.rows)) - {"-"})
    sections = [
        Section("reach", tuple(_matrix(picture))),
        Section("letters", (Row(", ".join(f"{letter} {picture.legend.get(letter, '')}" for letter in used)),)),
        Section("slowest", tuple(_pair(each) for each in _slowest(picture.pairs))),
        Section("clocks", tuple(_clocks(picture.clocks))),
    ]
    headline = f"{plural(len(picture.labels), 'host')} met, {plural(len(picture.pairs), 'link')} measured"
    shown = tuple(section for section in sections if section.rows)
    draw(Document("", headline, "plain", shown, framed=False), file, width)


def _matrix(picture: Picture) -> list[Row]:
    if len(picture.labels) > MOST_SHOWN:
        faulty = sum(letter not in ".-" for row in picture.rows for letter in row)
        return [Row(f"{faulty:,} of {len(picture.rows) ** 2:,} pairs are not open; --json has the whole picture")]
    return [
        Row(f"{' '.join(row)}  {one_line(label)}", style="path")
        for label, row in zip(picture.labels, picture.rows, strict=True)
    ]


def _slowest(pairs: Sequence[Pair]) -> list[Pair]:
    """The three that carry least."""
    measured = [each for each in pairs if each.forth and each.back]
    return sorted(measured, key=lambda each: min(each.forth or 0, each.back or 0))[:3]


def _pair(pair: Pair) -> Row:
    trip = f"round trip {duration(pair.round_trip_s)}, " if pair.round_trip_s is not None else ""
    return Row(f"{one_line(pair.ends)}: {trip}{_rate(pair.forth)} forth, {_rate(pair.back)} back")


def _rate(speed: float | None) -> str:
    return "unknown" if speed is None else f"{speed * 8 / 1e9:.2f} Gbit/s"


def _clocks(clocks: Mapping[str, tuple[float, float]]) -> list[Row]:
    if not clocks:
        return []
    host = max(clocks, key=lambda each: abs(clocks[each][0]))
    ahead, within = clocks[host]
    return [
        Row(
            f"{one_line(host)} is furthest from the leader's: {ahead * 1e3:+.2f} ms, give or take {within * 1e3:.2f} ms"
        )
    ]
