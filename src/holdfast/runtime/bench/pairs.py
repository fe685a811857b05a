"""Latency and bandwidth between each two ranks, in rounds of pairs that have nobody in common (a round-robin draw)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from holdfast.measured import Host, Pair
from holdfast.runtime.bench.calls import Bench
from holdfast.tournament import pairs, rounds

#: More ranks than this are not paired each with each: one rank of each host stands for it.
_MOST_RANKS = 32
_MESSAGE_BYTES, _TURNS = 4 << 20, 8


def measure_pairs(bench: Bench, hosts: Sequence[Host]) -> tuple[Pair, ...]:
    """All pairs of ranks, or of one rank a host where there are many; the same on every rank."""
    chosen = list(range(bench.ranks)) if bench.ranks <= _MOST_RANKS else [host.ranks[0] for host in hosts]
    found = torch.zeros(bench.ranks, len(chosen), 2, dtype=torch.float64, device=bench.send.device)
    drawn = draw(chosen)
    for number, disjoint in enumerate(drawn):
        dist.barrier(bench.group)
        for low, high in (pair for pair in disjoint if bench.rank in pair):
            measured = _ping_pong(bench, other=high if bench.rank == low else low, first=bench.rank == low)
            if bench.rank == low:
                found[low, number] = torch.tensor(measured, dtype=torch.float64)
    dist.all_reduce(found, group=bench.group)
    table = found.cpu()
    return tuple(
        Pair(ranks=(low, high), latency_s=float(table[low, number, 0]), bandwidth=float(table[low, number, 1]))
        for number, disjoint in enumerate(drawn) for low, high in disjoint
    )  # fmt: skip


def draw(chosen: Sequence[int]) -> list[list[tuple[int, int]]]:
    """For each round the pairs of ranks that are at work at once; each pair is in one round."""
    size = len(chosen)
    return [[(chosen[low], chosen[high]) for low, high in pairs(size, number)] for number in range(rounds(size))]


def _ping_pong(bench: Bench, other: int, *, first: bool) -> tuple[float, float]:
    """Half the round trip of a byte, and bytes a second one way; medians."""
    device = bench.send.device
    peer = dist.get_global_rank(bench.group, other)
    small, large = (torch.zeros(size, dtype=torch.uint8, device=device) for size in (1, _MESSAGE_BYTES))
    taken: dict[int, list[float]] = {}
    for message in (small, large):
        for _ in range(_TURNS):
            began = time.perf_counter()
            for sends in (first, not first):
                (dist.send if sends else dist.recv)(message, peer, group=bench.group)
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken.setdefault(message.numel(), []).append((time.perf_counter() - began) / 2)
    latency, large_s = (statistics.median(times[1:]) for times in taken.values())
    return latency, _MESSAGE_BYTES / max(large_s - latency, large_s / 2)
