"""NVLink bandwidth between GPUs of a host, computed from the driver's report of each link."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.findings import Unknown
from holdfast.host.gpus import SWITCH, DriverReport, HostGpu, NvLink


def nvlink_rate(answer: DriverReport, indices: Sequence[int]) -> tuple[float | Unknown, str]:
    """Return the bytes/s that each of these GPUs can send to the others, and the origin.

    Links to other GPUs do not count. The slowest GPU counts, because a ring passes through all of
    them. In-switch reduction (NVLink SHARP) may be up to twice as fast.
    """
    gpus = [gpu for gpu in answer.gpus if gpu.index in indices]
    if len(gpus) <= 1:
        return Unknown("there is only one GPU"), ""
    buses = {gpu.bus for gpu in gpus}
    links = {gpu.bus: _links_between(gpu, buses) for gpu in gpus}
    if not _is_connected(links):
        return Unknown("NVLink does not connect all participating GPUs"), ""
    rates: list[tuple[float, str]] = []
    for gpu in gpus:
        speeds = [link.rate for link in links[gpu.bus] if link.rate is not None]
        if len(speeds) < len(links[gpu.bus]):
            return Unknown(
                f"the driver does not report the speed of the NVLinks of GPU {gpu.index}"
            ), ""
        span = " to ".join(f"{speed / 1e9:.4g}" for speed in sorted({min(speeds), max(speeds)}))
        origin = (
            f"{len(speeds)} NVLinks of {span} GB/s per direction on GPU {gpu.index}, "
            f"reported by {answer.source}"
        )
        rates.append((sum(speeds), origin))
    return min(rates)


def _links_between(gpu: HostGpu, buses: set[str]) -> tuple[NvLink, ...]:
    """Return its active links to a switch, to one of these GPUs, or to an unknown remote end."""
    links = gpu.nvlinks if isinstance(gpu.nvlinks, tuple) else ()
    return tuple(link for link in links if link.up and link.remote in {"", SWITCH, *buses})


def _is_connected(links: dict[str, tuple[NvLink, ...]]) -> bool:
    """Return whether every GPU can reach every other one over these links."""
    neighbours = {bus: {link.remote or SWITCH for link in own} for bus, own in links.items()}
    neighbours[SWITCH] = {bus for bus, remotes in neighbours.items() if SWITCH in remotes}
    reached, frontier = set[str](), {next(iter(links))}
    while frontier:
        reached |= frontier
        frontier = {node for bus in frontier for node in neighbours.get(bus, ())} - reached
    return reached >= links.keys()
