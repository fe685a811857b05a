"""Three gloo ranks, one of which misses the last call or makes a different one; see test_dump_rules.py.

Arguments: rank, store file, folder for the dumps, fault. Each rank dumps its flight recorder while the others wait, and
exits when all have done so.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

rank, store, folder, fault = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
for _ in range(3):
    dist.all_reduce(torch.ones(4))


def last_call() -> None:
    """Make the faulty call."""
    if fault == "away" and rank == 1:
        return
    if fault == "operation" and rank == 1:
        dist.broadcast(torch.ones(4), 0)
        return
    dist.all_reduce(torch.ones(5 if fault == "shape" and rank == 1 else 4))
    dist.barrier()


threading.Thread(target=last_call, daemon=True).start()
time.sleep(1.5)  # by then the other ranks are in the call
(folder / f"trace_rank_{rank}.part").write_bytes(_dump_fr_trace(includeStackTraces=True))
(folder / f"trace_rank_{rank}.part").rename(folder / f"trace_rank_{rank}")
while len(list(folder.glob("trace_rank_?"))) < 3:
    time.sleep(0.05)
os._exit(0)
