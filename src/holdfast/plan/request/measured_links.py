"""Read the link measurements of ``holdfast bench`` for a plan on that cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.errors import InvalidValue
from holdfast.core.text import pluralize
from holdfast.plan.hardware import Cluster
from holdfast.plan.step_time.communication import calibrate_links
from holdfast.preflight.bench import measurements


def read_measured_links(clusters: Sequence[Cluster], file: Path) -> tuple[tuple[Cluster, ...], str]:
    """Return the clusters with the measured links, and a description of the measurement.

    Raises:
        MissingFile, InvalidValue: the file is unreadable, not a measurement, or has no fit.
    """
    measurement = measurements.read_measurement(file)
    fits = [fit for fit in measurement.fits if fit.way == "torch" and fit.ranks > 1]
    if not fits:
        raise InvalidValue(
            file,
            why="it has no latency and bandwidth fit of torch's collectives",
            next_step="measure several sizes: holdfast bench --min-bytes 8K --max-bytes 256M "
            "--save FILE",
        )
    largest = max(fits, key=lambda fit: (fit.ranks, fit.at))
    ranks = f"{largest.ranks:,} ranks on {pluralize(largest.hosts, 'host')}"
    return (
        tuple(replace(cluster, links=calibrate_links(cluster.links, fits)) for cluster in clusters),
        f"measured by holdfast bench over {largest.backend}, {ranks}",
    )
