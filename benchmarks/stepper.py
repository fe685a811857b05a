"""The job of the benchmark `recovery`: DDP steps with recorded times, and a fault in generation 0.

Arguments: FILE (one JSON line per step and rank), FAULT (none, sigkill, hang, sigstop), PG_TIMEOUT
(seconds; 0: torch's default), AFTER (seconds over which the steps before the fault are distributed;
default 0), IN_PLACE (1: the survivors of a dead rank continue in their processes). Under
ft_launcher it sends a heartbeat at every step, as NVIDIA's documentation requires.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

# Before the group exists: a later import by DDP keeps it alive.
import torch.distributed.nn.functional
from torch.nn.parallel import DistributedDataParallel

STEPS, FAULT_AT, GUILTY = 60, 20, 1


def main() -> None:
    """Train; rank 1 fails at step 20 of the first generation."""
    file, fault, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
    pause_s = float(sys.argv[4]) / FAULT_AT if len(sys.argv) > 4 else 0.0
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=limit) if limit else None)
    rank = dist.get_rank()
    beat = heartbeat()
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Path(file).open("a", buffering=1) as out:
        for step in range(STEPS):
            if (generation, rank, step) == (0, GUILTY, FAULT_AT) and fault != "none":
                out.write(json.dumps({"event": "fault", "time": time.time()}) + "\n")
                inject(fault)
            time.sleep(pause_s if generation == 0 else 0.0)
            optimizer.zero_grad()
            model(torch.randn(64, 256)).square().mean().backward()
            optimizer.step()
            beat()
            done = {
                "event": "step",
                "generation": generation,
                "rank": rank,
                "step": step,
                "time": time.time(),
            }
            out.write(json.dumps(done) + "\n")
    dist.barrier()
    del model  # before its group (PROC013)
    dist.destroy_process_group()


def heartbeat() -> Callable[[], None]:
    """Return a function that sends a heartbeat to ft_launcher, or does nothing elsewhere."""
    if "FT_RANK_MONITOR_IPC_SOCKET" not in os.environ:
        return lambda: None
    from nvidia_resiliency_ext import fault_tolerance  # noqa: PLC0415 - optional peer

    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    return client.send_heartbeat  # type: ignore[no-any-return]


def inject(fault: str) -> None:
    """Inject the fault into this process."""
    if fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[5:] == ["1"]:
        import holdfast

        holdfast.in_place(main)
    else:
        main()
