"""Latency and bandwidth of each pair of ranks, in rounds of disjoint pairs (round robin)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from holdfast.core.measurements import BenchHost, LinkPair
from holdfast.core.round_robin import round_count, round_pairs
from holdfast.preflight.bench.torch_worker.calls import CallBench

#: With more ranks than this, only one rank per host is measured.
_MAX_RANKS = 32
_MESSAGE_BYTES, _TURNS = 4 << 20, 8


def measure_pairs(bench: CallBench, hosts: Sequence[BenchHost]) -> tuple[LinkPair, ...]:
    """Measure all pairs of ranks, or one rank per host if there are many.

    The same on every rank.
    """
    chosen = (
        list(range(bench.ranks)) if bench.ranks <= _MAX_RANKS else [host.ranks[0] for host in hosts]
    )
    results = torch.zeros(
        bench.ranks, len(chosen), 2, dtype=torch.float64, device=bench.send.device
    )
    rounds = schedule_rounds(chosen)
    for number, disjoint in enumerate(rounds):
        dist.barrier(bench.group)
        for low, high in (pair for pair in disjoint if bench.rank in pair):
            measured = _ping_pong(
                bench, other=high if bench.rank == low else low, first=bench.rank == low
            )
            if bench.rank == low:
                results[low, number] = torch.tensor(measured, dtype=torch.float64)
    dist.all_reduce(results, group=bench.group)
    table = results.cpu()
    return tuple(
        LinkPair(
            ranks=(low, high),
            latency_s=float(table[low, number, 0]),
            bandwidth=float(table[low, number, 1]),
        )
        for number, disjoint in enumerate(rounds)
        for low, high in disjoint
    )


def schedule_rounds(chosen: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return the disjoint pairs of each round; each pair is in one round."""
    size = len(chosen)
    return [
        [(chosen[low], chosen[high]) for low, high in round_pairs(size, number)]
        for number in range(round_count(size))
    ]


def _ping_pong(bench: CallBench, other: int, *, first: bool) -> tuple[float, float]:
    """Return half the round trip of one byte in seconds, and bytes/s in one direction; medians."""
    device = bench.send.device
    peer = dist.get_global_rank(bench.group, other)
    small, large = (
        torch.zeros(size, dtype=torch.uint8, device=device) for size in (1, _MESSAGE_BYTES)
    )
    durations: dict[int, list[float]] = {}
    for message in (small, large):
        for _ in range(_TURNS):
            began = time.perf_counter()
            for sends in (first, not first):
                (dist.send if sends else dist.recv)(message, peer, group=bench.group)
            if device.type == "cuda":
                torch.cuda.synchronize()
            durations.setdefault(message.numel(), []).append((time.perf_counter() - began) / 2)
    latency, large_s = (statistics.median(times[1:]) for times in durations.values())
    return latency, _MESSAGE_BYTES / max(large_s - latency, large_s / 2)
