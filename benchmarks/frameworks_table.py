"""Figures of strategies as one table, and which of them to take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

GIB = 2**30
#: Faster by less than this, or by less than its own rounds differ, is not faster: the next run may have it otherwise.
NEAR = 0.05
#: Less memory than this share of another's is worth a word.
LESS = 0.9
HEAD = (
    "strategy", "samples/s", "to ddp", "memory GiB", "moving", "exposed", "start-up s", "saved MB", "files", "save s",
    "last loss",
)  # fmt: skip


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one strategy costs. ``failed`` is why it did not run; then the figures are 0.

    ``spread`` is how far its rounds were apart in speed, as a share of the median; 0 where there was one.
    """

    strategy: str
    samples_per_s: float = 0.0
    peak_bytes: int = 0
    busy: float = 0.0
    exposed: float = 0.0
    startup_s: float = 0.0
    saved_bytes: int = 0
    files: int = 0
    save_s: float = 0.0
    loss: float = 0.0
    spread: float = 0.0
    failed: str = ""


class Choice(msgspec.Struct, frozen=True):
    """The strategy to take, and sentences that say why; no strategy where none ran or none fits."""

    strategy: str | None
    why: tuple[str, ...]


def row_of(figures: Mapping[str, Any]) -> Row:
    """Of what ``examples/frameworks/train.py --save … --measure …`` wrote."""
    moved, saved = figures["communication"], figures["checkpoint"]
    return Row(
        strategy=figures["strategy"], samples_per_s=figures["samples_per_s"], peak_bytes=figures["peak_bytes"],
        busy=moved["busy"], exposed=moved["exposed"], startup_s=figures["startup_s"], saved_bytes=saved["bytes"],
        files=saved["files"], save_s=saved["seconds"], loss=figures["losses"][-1],
    )  # fmt: skip


def median(rounds: Sequence[Row]) -> Row:
    """Of several runs of one strategy; of memory the most. One that failed once has failed."""
    for each in rounds:
        if each.failed:
            return each

    def middle(name: str) -> float:
        return statistics.median(getattr(each, name) for each in rounds)

    figures = {name: middle(name) for name in ("samples_per_s", "busy", "exposed", "startup_s", "save_s")}
    speeds = [each.samples_per_s for each in rounds]
    spread = (max(speeds) - min(speeds)) / figures["samples_per_s"]
    most = max(each.peak_bytes for each in rounds)
    return msgspec.structs.replace(rounds[0], **figures, peak_bytes=most, spread=spread)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown; speed next to that of DDP, where that ran."""
    base = next((row.samples_per_s for row in rows if row.strategy == "ddp" and not row.failed), 0.0)
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    for row in rows:
        if row.failed:
            lines.append(_line([row.strategy, f"({row.failed})", *[""] * (len(HEAD) - 2)]))
            continue
        ratio = f"{row.samples_per_s / base:.2f}" if base else ""
        lines.append(_line([
            row.strategy, f"{row.samples_per_s:.1f}", ratio, f"{row.peak_bytes / GIB:.2f}", f"{row.busy:.0%}",
            f"{row.exposed:.0%}", f"{row.startup_s:.1f}", f"{row.saved_bytes / 1e6:.1f}", f"{row.files}",
            f"{row.save_s:.2f}", f"{row.loss:.4f}",
        ]))  # fmt: skip
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def recommend(rows: Sequence[Row], most_bytes: int | None = None) -> Choice:
    """The fastest that fits into ``most_bytes`` (None: all do); of those as fast, the one with the least memory."""
    ran = [row for row in rows if not row.failed]
    if not ran:
        return Choice(None, ("no strategy ran",))
    fit = [row for row in ran if most_bytes is None or row.peak_bytes <= most_bytes]
    least = min(ran, key=lambda row: row.peak_bytes)
    if not fit:
        room = (most_bytes or 0) / GIB
        needs = f"none fits: {least.strategy} needs the least, {least.peak_bytes / GIB:.2f} of {room:.2f} GiB"
        return Choice(None, (needs, "more ranks, recomputation or offloading would lower that: holdfast plan"))
    fastest = max(fit, key=lambda row: row.samples_per_s)
    near = [row for row in fit if row.samples_per_s >= fastest.samples_per_s * (1 - _chance(row, fastest))]
    leanest = min(near, key=lambda row: row.peak_bytes)
    chosen = leanest if leanest.peak_bytes < LESS * fastest.peak_bytes else fastest
    return Choice(chosen.strategy, tuple(_why(chosen, fastest, least, [row for row in ran if row not in fit])))


def _why(chosen: Row, fastest: Row, least: Row, too_large: Sequence[Row]) -> list[str]:
    first = f"{chosen.strategy}: {chosen.samples_per_s:.1f} samples/s"
    if chosen is fastest:
        found = [f"{first}, the fastest{' that fits' if too_large else ''}"]
    else:
        as_fast = f"as fast as {fastest.strategy} within {_chance(chosen, fastest):.0%}"
        found = [f"{first}, {as_fast}, in {_gib(chosen)} instead of {_gib(fastest)}"]
    if least.peak_bytes < LESS * chosen.peak_bytes:
        slower = 1 - least.samples_per_s / chosen.samples_per_s
        found.append(
            f"where memory is short, {least.strategy}: {_gib(least)} instead of {_gib(chosen)}, {slower:.0%} slower"
        )
    found += [f"{row.strategy} does not fit: {_gib(row)}" for row in too_large]
    return found


def _chance(one: Row, other: Row) -> float:
    """The share by which two may differ in speed, and yet be as fast."""
    return max(NEAR, one.spread, other.spread)


def _gib(row: Row) -> str:
    return f"{row.peak_bytes / GIB:.2f} GiB"


def apart(rows: Sequence[Row]) -> float:
    """The largest difference between two last losses: all learn the same, so that they may be compared at all."""
    losses = [row.loss for row in rows if not row.failed]
    return max(losses, default=0.0) - min(losses, default=0.0)
