"""All-reduce over two "hosts" flat and by nodes; gradients compressed or not on that link; µs a step of lockstep.

The hosts are network namespaces with a link of 1 Gbit/s between them (tc's tbf; root is needed, or that part is left
out), and two ranks each. Calls take turns, medians over the turns of the slowest rank; the ratio is to torch's own flat
all-reduce. The peer is ``torch.distributed.all_reduce``; the bound of a ring over the link is printed beside it.
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

from benchmarks.ranks import be_one, start

RANKS, TURNS = 4, 7
ELEMENTS = 10_000_000  # 40 MB of float32
GBIT_S = 1.0
STEPS = 500  # of a millisecond each


def _timed(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of each call on the slowest rank, in turns; the first turn is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            dist.barrier()
            began = time.perf_counter()
            way()
            took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn:
                taken[name].append(took.item())
    return taken


def _link() -> None:
    """What a rank does in the job over the link."""
    from holdfast import comm  # noqa: PLC0415 - after torch's group, as scripts do
    from holdfast.runtime.comm.compression import measure_link  # noqa: PLC0415

    nodes = [[0, 1], [2, 3]]
    rails, leaders = comm.Hierarchy(nodes=nodes), comm.Hierarchy(nodes=nodes)
    leaders.rails = 1
    tensor = torch.rand(ELEMENTS)
    found = _timed(
        {
            "torch, flat": lambda: dist.all_reduce(tensor),
            "holdfast, flat, pieces of 1 M": lambda: comm.all_reduce(tensor, chunk=1 << 20),
            "holdfast, leaders alone, one piece": lambda: leaders.all_reduce(tensor, chunk=ELEMENTS),
            "holdfast, leaders alone, pieces": lambda: leaders.all_reduce(tensor),
            "holdfast, two rails, pieces": lambda: rails.all_reduce(tensor),
        },
        TURNS,
    )
    measured = measure_link(kinds=("bf16", "fp16", "powersgd"))
    if dist.get_rank():
        return
    base = found["torch, flat"]
    print(f"{RANKS} ranks on 2 hosts, {GBIT_S:g} Gbit/s, {4 * ELEMENTS / 1e6:.0f} MB")
    print(f"{'':36} {'s':>8} {'times as fast':>14}")
    for name, values in found.items():
        ratio = statistics.median(flat / mine for flat, mine in zip(base, values, strict=True))
        print(f"{name:36} {statistics.median(values):8.3f} {ratio:14.2f}")
    wire = 8 * 4 * ELEMENTS / (GBIT_S * 1e9)
    print(f"{'(bound: a ring over all ranks)':36} {2 * (RANKS - 1) / RANKS * wire:8.3f}")
    print(f"{'(bound: each half crosses once)':36} {wire:8.3f}")
    for kind in measured.compressed_s:
        print(measured.say(kind))


def _steps() -> None:
    """What a rank does in the job on one host: µs that lockstep adds to a step, and what compression does there."""
    from holdfast import comm  # noqa: PLC0415
    from holdfast.runtime.comm.compression import measure_link  # noqa: PLC0415

    torch.manual_seed(0)
    parameters = [torch.rand(256, 1024) for _ in range(40)]  # 42 MB
    groups = [dist.new_group() for _ in range(3)]

    calls: dict[str, Callable[[int], object]] = {
        "an empty call": lambda _: None,
        "lockstep, every 10": lambda step: comm.lockstep(step, batches=step, every=10, group=groups[0]),
        "lockstep, every 100": lambda step: comm.lockstep(step, batches=step, every=100, group=groups[1]),
        "  with 42 MB of parameters": lambda step: comm.lockstep(
            step, parameters=parameters, every=100, group=groups[2]
        ),
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    gradient = torch.zeros(1000)
    for turn in range(TURNS):
        for name, call in calls.items():
            inside = 0.0
            for step in range(STEPS):
                time.sleep(0.001)  # the step itself, which ends with the sum of gradients
                dist.all_reduce(gradient)
                began = time.perf_counter()
                call(step)
                inside += time.perf_counter() - began
            if turn:
                spent[name].append(inside / STEPS)
    measured = measure_link(kinds=("bf16", "fp16", "powersgd"))
    if dist.get_rank():
        return
    print(f"\n2 ranks on one host\n{'':36} {'µs a step':>10}")
    for name, values in spent.items():
        print(f"{name:36} {statistics.median(values) * 1e6:10.2f}")
    for kind in measured.compressed_s:
        print(measured.say(kind))


@contextmanager
def _hosts() -> Iterator[list[tuple[str, str]]]:
    """Two namespaces with a link between them; each side is shaped on its way out."""
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
        print("all-reduce over two hosts is left out: namespaces and tc need root, and iproute2")
    else:
        try:
            with _hosts() as hosts:
                start(__name__, RANKS, "link", [hosts[rank * len(hosts) // RANKS] for rank in range(RANKS)])
        except subprocess.CalledProcessError as error:
            print(f"all-reduce over two hosts is left out: {error.stderr.decode().strip()} ({' '.join(error.cmd)})")
    start(__name__, 2, "steps")


if __name__ == "__main__":
    be_one({"link": _link, "steps": _steps})
