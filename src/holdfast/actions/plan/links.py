"""What ``holdfast bench`` measured of a cluster's links, for a plan on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast.errors import BadValue
from holdfast.facts import measurements
from holdfast.plan.communication import calibrated
from holdfast.plan.hardware import Cluster
from holdfast.report.text import plural


def measured(parts: Sequence[Cluster], file: Path) -> tuple[tuple[Cluster, ...], str]:
    """The clusters with these links, and in words where they come from.

    Raises:
        MissingFile, BadValue: the file cannot be opened, is no measurement, or has no line through its times.
    """
    found = measurements.read(file)
    fits = [each for each in found.fits if each.way == "torch" and each.ranks > 1]
    if not fits:
        raise BadValue(
            file, why="it has no latency and bandwidth of torch's own collectives",
            next_step="measure several sizes: holdfast bench --min-bytes 8K --max-bytes 256M --save FILE",
        )  # fmt: skip
    largest = max(fits, key=lambda each: (each.ranks, each.at))
    over = f"{largest.ranks:,} ranks on {plural(largest.hosts, 'host')}"
    return (
        tuple(replace(part, links=calibrated(part.links, fits)) for part in parts),
        f"as holdfast bench measured them over {largest.backend}, {over}",
    )
