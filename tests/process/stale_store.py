"""A restart in which rank 1 reads rank 0's address before rank 0 has published the new one.

In generation 0 rank 1 fails once all are connected; later rank 0 starts a second late. A launcher
that keeps one store across restarts returns the address of the dead rank 0. ``--late SECONDS`` (1).
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LATE_S = float(sys.argv[sys.argv.index("--late") + 1]) if "--late" in sys.argv else 1.0
RANK, GENERATION = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

if GENERATION and RANK == 0:
    time.sleep(LATE_S)
start = time.monotonic()
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
total = torch.ones(1)
dist.all_reduce(total)
print(  # noqa: T201
    f"generation {GENERATION} rank {RANK}: connected in {time.monotonic() - start:.1f} s, sum {total.item():.0f}"
)
if GENERATION == 0 and RANK == 1:
    os._exit(7)
dist.barrier()
dist.destroy_process_group()
