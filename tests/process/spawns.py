"""Start ranks without a launcher; the first argument is the start method of torch.multiprocessing.

Their environment at start does not contain the rank. Rank 1 never enters the all_reduce; rank 0 has
a spawned data-loader worker. ``workers``: start only such workers, and no job.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.utils.data import DataLoader

WORLD_SIZE = 3


def rank(index: int, port: str) -> None:
    os.environ.update(RANK=str(index), WORLD_SIZE=str(WORLD_SIZE))
    where = f"tcp://127.0.0.1:{port}" if port != "0" else "env://"  # torchrun's store
    dist.init_process_group("gloo", init_method=where, rank=index, world_size=WORLD_SIZE)
    if index == 0:
        loader = DataLoader(
            range(9), num_workers=1, persistent_workers=True, multiprocessing_context="spawn"
        )
        next(iter(loader))
    dist.barrier()
    os.write(1, b"ready\n")
    if index == 1:
        time.sleep(3600)  # GUILTY
    dist.all_reduce(torch.ones(2))


if __name__ == "__main__":
    how, at_port = sys.argv[1:]
    if how == "workers":
        batches = iter(
            DataLoader(
                range(9), num_workers=2, persistent_workers=True, multiprocessing_context="spawn"
            )
        )
        next(batches)
        os.write(1, b"ready\n")
        time.sleep(3600)
    multiprocessing.start_processes(rank, args=(at_port,), nprocs=WORLD_SIZE, start_method=how)
