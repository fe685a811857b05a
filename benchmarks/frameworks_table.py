"""A table of strategies with their costs, and a recommendation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

GIB = 2**30
#: Relative speed difference that counts as noise, unless the rounds of a strategy differ by more.
NOISE = 0.05
#: Memory below this share of another strategy's is significantly less.
LESS = 0.9
HEAD = (
    "strategy",
    "samples/s",
    "to ddp",
    "memory GiB",
    "moving",
    "exposed",
    "start-up s",
    "saved MB",
    "files",
    "save s",
    "last loss",
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one strategy.

    ``failed`` is why it did not run; then the figures are 0. ``spread`` is the relative spread of
    its rounds' speed, as a share of the median; 0 if there was one round.
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
    """The recommended strategy and the reasons; None if none ran or fits."""

    strategy: str | None
    why: tuple[str, ...]


def row_of(figures: Mapping[str, Any]) -> Row:
    """Parse the output of ``examples/frameworks/train.py --save … --measure …``."""
    moved, saved = figures["communication"], figures["checkpoint"]
    return Row(
        strategy=figures["strategy"],
        samples_per_s=figures["samples_per_s"],
        peak_bytes=figures["peak_bytes"],
        busy=moved["busy"],
        exposed=moved["exposed"],
        startup_s=figures["startup_s"],
        saved_bytes=saved["bytes"],
        files=saved["files"],
        save_s=saved["seconds"],
        loss=figures["losses"][-1],
    )


def merge_rounds(rounds: Sequence[Row]) -> Row:
    """Merge several runs of one strategy: median figures, maximum memory; any failure fails."""
    for each in rounds:
        if each.failed:
            return each

    def middle(name: str) -> float:
        return statistics.median(getattr(each, name) for each in rounds)

    figures = {
        name: middle(name) for name in ("samples_per_s", "busy", "exposed", "startup_s", "save_s")
    }
    speeds = [each.samples_per_s for each in rounds]
    spread = (max(speeds) - min(speeds)) / figures["samples_per_s"]
    most = max(each.peak_bytes for each in rounds)
    return msgspec.structs.replace(rounds[0], **figures, peak_bytes=most, spread=spread)


def table(rows: Sequence[Row]) -> list[str]:
    """Return Markdown lines; speed relative to DDP, if it ran."""
    base = next(
        (row.samples_per_s for row in rows if row.strategy == "ddp" and not row.failed), 0.0
    )
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    for row in rows:
        if row.failed:
            lines.append(_line([row.strategy, f"({row.failed})", *[""] * (len(HEAD) - 2)]))
            continue
        ratio = f"{row.samples_per_s / base:.2f}" if base else ""
        lines.append(
            _line(
                [
                    row.strategy,
                    f"{row.samples_per_s:.1f}",
                    ratio,
                    f"{row.peak_bytes / GIB:.2f}",
                    f"{row.busy:.0%}",
                    f"{row.exposed:.0%}",
                    f"{row.startup_s:.1f}",
                    f"{row.saved_bytes / 1e6:.1f}",
                    f"{row.files}",
                    f"{row.save_s:.2f}",
                    f"{row.loss:.4f}",
                ]
            )
        )
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def recommend(rows: Sequence[Row], most_bytes: int | None = None) -> Choice:
    """Return the fastest that fits into ``most_bytes`` (None: all); on a tie, the smallest."""
    ran = [row for row in rows if not row.failed]
    if not ran:
        return Choice(None, ("no strategy ran",))
    fit = [row for row in ran if most_bytes is None or row.peak_bytes <= most_bytes]
    least = min(ran, key=lambda row: row.peak_bytes)
    if not fit:
        limit_gib = (most_bytes or 0) / GIB
        peak_gib = least.peak_bytes / GIB
        needs = (
            f"none fits: {least.strategy} needs the least, {peak_gib:.2f} of {limit_gib:.2f} GiB"
        )
        return Choice(
            None,
            (needs, "use more ranks, activation checkpointing or offloading; see holdfast plan"),
        )
    fastest = max(fit, key=lambda row: row.samples_per_s)
    as_fast_rows = [
        row
        for row in fit
        if row.samples_per_s >= fastest.samples_per_s * (1 - _noise(row, fastest))
    ]
    smallest = min(as_fast_rows, key=lambda row: row.peak_bytes)
    chosen = smallest if smallest.peak_bytes < LESS * fastest.peak_bytes else fastest
    return Choice(
        chosen.strategy,
        tuple(_reasons(chosen, fastest, least, [row for row in ran if row not in fit])),
    )


def _reasons(chosen: Row, fastest: Row, least: Row, too_large: Sequence[Row]) -> list[str]:
    first = f"{chosen.strategy}: {chosen.samples_per_s:.1f} samples/s"
    if chosen is fastest:
        found = [f"{first}, the fastest{' that fits' if too_large else ''}"]
    else:
        as_fast = f"as fast as {fastest.strategy} within {_noise(chosen, fastest):.0%}"
        found = [f"{first}, {as_fast}, in {_gib(chosen)} instead of {_gib(fastest)}"]
    if least.peak_bytes < LESS * chosen.peak_bytes:
        slower = 1 - least.samples_per_s / chosen.samples_per_s
        found.append(
            f"with less memory, {least.strategy}: {_gib(least)} instead of {_gib(chosen)}, "
            f"{slower:.0%} slower"
        )
    found += [f"{row.strategy} does not fit: {_gib(row)}" for row in too_large]
    return found


def _noise(one: Row, other: Row) -> float:
    """Return the relative speed difference that is not significant."""
    return max(NOISE, one.spread, other.spread)


def _gib(row: Row) -> str:
    return f"{row.peak_bytes / GIB:.2f} GiB"


def loss_difference(rows: Sequence[Row]) -> float:
    """Return the largest difference of last losses, which must be small for a comparison."""
    losses = [row.loss for row in rows if not row.failed]
    return max(losses, default=0.0) - min(losses, default=0.0)
