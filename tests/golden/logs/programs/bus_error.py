"""The memory-mapped dataset of rank 1 is overwritten by a shorter one while it is read."""

import mmap
import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
with tempfile.NamedTemporaryFile() as file:
    file.truncate(1 << 20)
    tokens = mmap.mmap(file.fileno(), 1 << 20)
    for step in range(20):
        if (rank, step) == (1, 9):
            os.truncate(file.name, 4096)
        batch = tokens[step << 15 : (step << 15) + 16]
        dist.all_reduce(torch.tensor(list(batch)))
        if rank == 0 and step % 5 == 0:
            print(f"step {step} / 20 loss {3 / (step + 1):.4f}", flush=True)
