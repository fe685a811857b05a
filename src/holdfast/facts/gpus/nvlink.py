"""What NVLink could carry between some GPUs of a host, by what the driver tells of each link."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.facts.gpus import SWITCH, Answer, Gpu, NvLink
from holdfast.findings import Unknown


def rate(answer: Answer, chosen: Sequence[int]) -> tuple[float | Unknown, str]:
    """Bytes a second that each of the ``chosen`` GPUs (NVML's numbers) can send to the others, and how that is known.

    Links to other GPUs than these do not count. It is the GPU with the least that counts, as a ring goes through all
    of them. A part of it may flow through the switch twice as fast, which reduces by itself (NVLink SHARP).
    """
    gpus = [gpu for gpu in answer.gpus if gpu.index in chosen]
    if len(gpus) <= 1:
        return Unknown("a single GPU has nobody to talk to"), ""
    buses = {gpu.bus for gpu in gpus}
    links = {gpu.bus: _between(gpu, buses) for gpu in gpus}
    if not _joined(links):
        return Unknown("no NVLink joins all GPUs that take part"), ""
    rates: list[tuple[float, str]] = []
    for gpu in gpus:
        told = [link.rate for link in links[gpu.bus] if link.rate is not None]
        if len(told) < len(links[gpu.bus]):
            return Unknown(f"the driver does not tell how fast the NVLinks of GPU {gpu.index} are"), ""
        each = " to ".join(f"{speed / 1e9:.4g}" for speed in sorted({min(told), max(told)}))
        words = f"{len(told)} NVLinks of {each} GB/s each way, GPU {gpu.index}, says {answer.source}"
        rates.append((sum(told), words))
    return min(rates)


def _between(gpu: Gpu, buses: set[str]) -> tuple[NvLink, ...]:
    """Its links that are up and lead to a switch or one of these GPUs, or nobody knows where."""
    links = gpu.nvlinks if isinstance(gpu.nvlinks, tuple) else ()
    return tuple(link for link in links if link.up and link.to in {"", SWITCH, *buses})


def _joined(links: dict[str, tuple[NvLink, ...]]) -> bool:
    """Whether one comes from each GPU to each other one over links alone."""
    ways = {bus: {link.to or SWITCH for link in own} for bus, own in links.items()}
    ways[SWITCH] = {bus for bus, to in ways.items() if SWITCH in to}
    reached, new = set[str](), {next(iter(links))}
    while new:
        reached |= new
        new = {to for bus in new for to in ways.get(bus, ())} - reached
    return reached >= links.keys()
