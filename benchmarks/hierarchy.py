"""Flat and hierarchical all-reduce over two "hosts", compressed gradients, and cost of lockstep.

The hosts are network namespaces with two ranks each and a link of 1 Gbit/s between them (tc's tbf,
which needs root; skipped without). Calls alternate; durations are medians over the turns, of the
slowest rank. The peer is a flat ``torch.distributed.all_reduce``; the lower bound of a ring over
the link is printed too.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from benchmarks.ranks import run_rank, start_ranks

RANKS, TURNS = 4, 7
ELEMENTS = 10_000_000  # 40 MB of float32
GBIT_S = 1.0
STEPS = 500  # of a millisecond each


def _time_calls(calls: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each call on the slowest rank; the first turn is not counted."""
    durations: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            call()
            took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn:
                durations[name].append(took.item())
    return durations


def _compare_over_link() -> None:
    """Compare all-reduces over the link; runs on each rank."""
    from holdfast import comm  # noqa: PLC0415 - after torch's group, as scripts do
    from holdfast.training.collectives.compression import measure_link  # noqa: PLC0415

    nodes = [[0, 1], [2, 3]]
    rails, leaders = comm.Hierarchy(nodes=nodes), comm.Hierarchy(nodes=nodes)
    leaders.rails = 1
    tensor = torch.rand(ELEMENTS)
    found = _time_calls(
        {
            "torch, flat": lambda: dist.all_reduce(tensor),
            "holdfast, flat, chunks of 1 M": lambda: comm.all_reduce(tensor, chunk=1 << 20),
            "holdfast, leaders only, one chunk": lambda: leaders.all_reduce(tensor, chunk=ELEMENTS),
            "holdfast, leaders only, chunks": lambda: leaders.all_reduce(tensor),
            "holdfast, two rails, chunks": lambda: rails.all_reduce(tensor),
        },
        TURNS,
    )
    measured = measure_link(kinds=("bf16", "fp16", "powersgd"))
    if dist.get_rank():
        return
    base = found["torch, flat"]
    print(f"{RANKS} ranks on 2 hosts, {GBIT_S:g} Gbit/s, {4 * ELEMENTS / 1e6:.0f} MB")
    print(f"{'':36} {'s':>8} {'speed ratio':>14}")
    for name, values in found.items():
        ratio = statistics.median(flat / mine for flat, mine in zip(base, values, strict=True))
        print(f"{name:36} {statistics.median(values):8.3f} {ratio:14.2f}")
    wire = 8 * 4 * ELEMENTS / (GBIT_S * 1e9)
    print(f"{'(bound: a ring over all ranks)':36} {2 * (RANKS - 1) / RANKS * wire:8.3f}")
    print(f"{'(bound: each half crosses once)':36} {wire:8.3f}")
    for kind in measured.compressed_s:
        print(measured.describe(kind))


def _time_lockstep() -> None:
    """Measure what lockstep adds to a step, and compression on one host; runs on each rank."""
    from holdfast import comm  # noqa: PLC0415 - after torch's group, as scripts do
    from holdfast.training.collectives.compression import measure_link  # noqa: PLC0415

    torch.manual_seed(0)
    parameters = [torch.rand(256, 1024) for _ in range(40)]  # 42 MB
    groups = [dist.new_group() for _ in range(3)]

    calls: dict[str, Callable[[int], object]] = {
        "an empty call": lambda _: None,
        "lockstep, every 10": lambda step: comm.lockstep(
            step, batches=step, every=10, group=groups[0]
        ),
        "lockstep, every 100": lambda step: comm.lockstep(
            step, batches=step, every=100, group=groups[1]
        ),
        "  with 42 MB of parameters": lambda step: comm.lockstep(
            step, parameters=parameters, every=100, group=groups[2]
        ),
    }
    spent_s: dict[str, list[float]] = {name: [] for name in calls}
    gradient = torch.zeros(1000)
    for turn in range(TURNS):
        for name, call in calls.items():
            inside_s = 0.0
            for step in range(STEPS):
                time.sleep(0.001)  # the step itself, which ends with the sum of gradients
                dist.all_reduce(gradient)
                began = time.perf_counter()
                call(step)
                inside_s += time.perf_counter() - began
            if turn:
                spent_s[name].append(inside_s / STEPS)
    measured = measure_link(kinds=("bf16", "fp16", "powersgd"))
    if dist.get_rank():
        return
    print(f"\n2 ranks on one host\n{'':36} {'µs per step':>12}")
    for name, values in spent_s.items():
        print(f"{name:36} {statistics.median(values) * 1e6:12.2f}")
    for kind in measured.compressed_s:
        print(measured.describe(kind))


@contextmanager
def _hosts() -> Iterator[list[tuple[str, str]]]:
    """Yield two namespaces with their devices, connected by a link with limited bandwidth."""
    names = [f"holdfast{os.getpid()}{side}" for side in "ab"]
    ends = [f"hf{os.getpid() % 100000}{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for at, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.231.0.{at + 1}/24", "dev", end)
            for device in ("lo", end):
                ip("-n", name, "link", "set", device, "up")
            shape = ["tc", "qdisc", "add", "dev", end, "root", "tbf", "rate", f"{GBIT_S:g}gbit"]
            command = ["ip", "netns", "exec", name, *shape, "burst", "256kb", "latency", "50ms"]
            subprocess.run(command, check=True, capture_output=True)
        yield list(zip(names, ends, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def main() -> None:
    """Print the tables."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        print("skipped: all-reduce over two hosts needs root and iproute2")
    else:
        try:
            with _hosts() as hosts:
                start_ranks(
                    __name__,
                    RANKS,
                    "link",
                    [hosts[rank * len(hosts) // RANKS] for rank in range(RANKS)],
                )
        except subprocess.CalledProcessError as error:
            print(
                f"skipped: all-reduce over two hosts: {error.stderr.decode().strip()} "
                f"({' '.join(error.cmd)})"
            )
    start_ranks(__name__, 2, "lockstep")


if __name__ == "__main__":
    run_rank({"link": _compare_over_link, "lockstep": _time_lockstep})
