"""Start real ranks on this host over gloo, and compare calls that they make in turns.

All ranks start each call together; its duration is that on rank 0. Printed are the median over the
turns, the speed relative to the first call (the median ratio per turn), and by how many MiB the
call raised the peak memory of rank 0.
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


def start_ranks(
    module: str, size: int, program: str, namespaces: Sequence[tuple[str, str]] = ()
) -> None:
    """Run a program of the benchmark ``module`` on ``size`` ranks, and wait for them.

    ``namespaces``: network namespace and device of each rank.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                module,
                str(rank),
                str(size),
                f"{folder}/store",
                program,
            ]
            variables = {"OMP_NUM_THREADS": "1"}
            if namespaces:
                command = ["ip", "netns", "exec", namespaces[rank][0], *command]
                variables["GLOO_SOCKET_IFNAME"] = namespaces[rank][1]
            ranks.append(subprocess.Popen(command, env=os.environ | variables))
        try:
            statuses = [rank.wait(LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert statuses == [0] * size


def run_rank(programs: Mapping[str, Callable[[], None]]) -> None:
    """Run this process as a rank: number, size, store file and program are its arguments."""
    import torch  # noqa: PLC0415 - only ranks import torch
    import torch.distributed as dist  # noqa: PLC0415

    rank, size, file, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    store = dist.FileStore(file, size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_S)
    )
    programs[program]()
    dist.barrier()
    os._exit(0)


def compare(title: str, calls: Calls, turns: int, warm: int = 2) -> None:
    """Print one line per call; the first ``warm`` turns are not counted."""
    import torch.distributed as dist  # noqa: PLC0415

    extra = {name: extra_mib(call) for name, call in calls.items()}
    durations: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(warm + turns):
        for name, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            call()
            durations[name].append(time.perf_counter() - began)
    if dist.get_rank():
        return
    base, *_ = (values[warm:] for values in durations.values())
    for name, values in durations.items():
        ratio = statistics.median(
            zero / value for zero, value in zip(base, values[warm:], strict=True)
        )
        median_ms = 1e3 * statistics.median(values[warm:])
        heading = f"{dist.get_world_size()} ranks, {title}"
        print(
            f"{heading:42} {name:46} {median_ms:10.3f} {ratio:8.3f} {extra[name]:10.1f}", flush=True
        )


def print_heading() -> None:
    """Print the heading of the lines of :func:`compare`."""
    print(f"{'':42} {'':46} {'ms':>10} {'faster':>8} {'extra MiB':>10}", flush=True)


def extra_mib(call: Callable[[], object]) -> float:
    """Return by how many MiB the call raises the peak memory above the current use."""
    Path("/proc/self/clear_refs").write_text(
        "5", encoding="ascii"
    )  # resets the peak to the current use
    before = _peak_kib()
    call()
    return (_peak_kib() - before) / 1024


def _peak_kib() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
