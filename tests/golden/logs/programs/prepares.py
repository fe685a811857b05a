"""Rank 0 tokenizes the dataset for longer than the timeout of the others at the barrier."""

import datetime as dt
import sys
import time

import torch.distributed as dist

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=4))
if dist.get_rank() == 0:
    for done in range(0, 1000, 100):
        sys.stderr.write(
            f"\rTokenizing dataset: {done // 10:3d}%|####      | {done}/1000 [00:01<00:09, 97.31 examples/s]"
        )
        sys.stderr.flush()
        time.sleep(1)
dist.barrier()
