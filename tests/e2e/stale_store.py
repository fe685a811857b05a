# ruff: noqa: T201 - a script that talks
"""A restart in which rank 1 is certain to ask for rank 0's address before rank 0 has announced the new one.

In the first generation rank 1 fails once all are connected; afterwards rank 0 comes a second late. A launcher that
keeps one store over restarts hands rank 1 the address at which the dead rank 0 listened. ``--late SECONDS`` (1).
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
begun = time.monotonic()
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
total = torch.ones(1)
dist.all_reduce(total)
print(f"generation {GENERATION} rank {RANK}: connected in {time.monotonic() - begun:.1f} s, sum {total.item():.0f}")
if GENERATION == 0 and RANK == 1:
    os._exit(7)
dist.barrier()
dist.destroy_process_group()
