"""Real ranks on this host over gloo that make calls in turns, for benchmarks of what they call.

The calls of one comparison take turns, each begun by all ranks at once, and count as long as rank 0 is in them. Shown
are the median of the turns, how many times faster than the first call that is (the median of the ratios of each turn),
and by how many MiB the call raised the peak of rank 0's memory.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

Calls = Mapping[str, Callable[[], Any]]
LIMIT_S = 900


def start(module: str, size: int, what: str, spaces: Sequence[tuple[str, str]] = ()) -> None:
    """Run program ``what`` of the benchmark ``module`` on so many ranks.

    ``spaces``: for each rank the network name space that it is in, and its device there.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            command = [sys.executable, "-W", "ignore", "-m", module, str(rank), str(size), f"{folder}/store", what]
            variables = {"OMP_NUM_THREADS": "1"}
            if spaces:
                command = ["ip", "netns", "exec", spaces[rank][0], *command]
                variables["GLOO_SOCKET_IFNAME"] = spaces[rank][1]
            ranks.append(subprocess.Popen(command, env=os.environ | variables))
        try:
            statuses = [rank.wait(LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert statuses == [0] * size


def be_one(programs: Mapping[str, Callable[[], None]]) -> None:
    """Be the rank that the command line says, in the program that it names."""
    import torch  # noqa: PLC0415 - only ranks import torch
    import torch.distributed as dist  # noqa: PLC0415

    rank, size, file, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    store = dist.FileStore(file, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_S))
    programs[what]()
    dist.barrier()
    os._exit(0)


def compare(title: str, calls: Calls, turns: int, warm: int = 2) -> None:
    """Print a line for each call; the first ``warm`` turns of each are not counted."""
    import torch.distributed as dist  # noqa: PLC0415

    extra = {name: extra_mib(call) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(warm + turns):
        for name, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    if dist.get_rank():
        return
    base, *_ = (values[warm:] for values in taken.values())
    for name, values in taken.items():
        ratio = statistics.median(zero / value for zero, value in zip(base, values[warm:], strict=True))
        middle = 1e3 * statistics.median(values[warm:])
        where = f"{dist.get_world_size()} ranks, {title}"
        print(f"{where:42} {name:46} {middle:10.3f} {ratio:8.3f} {extra[name]:10.1f}", flush=True)


def heading() -> None:
    """The line above those of :func:`compare`."""
    print(f"{'':42} {'':46} {'ms':>10} {'faster':>8} {'extra MiB':>10}", flush=True)


def extra_mib(call: Callable[[], object]) -> float:
    """MiB by which the call raises the peak of this process' memory above what it has now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what there is now
    before = _peak_kib()
    call()
    return (_peak_kib() - before) / 1024


def _peak_kib() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
