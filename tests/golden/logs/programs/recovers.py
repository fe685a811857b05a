"""A storage error on rank 1 fails the first attempt; the agent restarts all ranks, and the second succeeds."""

import os
import time

import torch
import torch.distributed as dist


def open_shard(number: int, attempt: int) -> range:
    if (number, attempt) == (1, 0):
        raise ConnectionResetError(104, "Connection reset by peer", "/mnt/data/shard-1")
    time.sleep(4 if attempt == 0 else 0)
    return range(40)


rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"rank {rank}: attempt {attempt}", flush=True)
steps = open_shard(rank, attempt)
dist.init_process_group("gloo")
for step in steps:
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 5 == 0:
        print(f"step {step} / 40 loss {3 / (step + 1):.4f}", flush=True)
if rank == 0:
    print("training finished, model saved to /results/final.pt", flush=True)
dist.destroy_process_group()
