"""Rank 1 fails in the first attempt; the restarted ranks read addresses of dead ranks from the store."""

import datetime as dt
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=20))
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"rank {rank}: attempt {attempt}, resuming from step {20 * attempt}", flush=True)
for step in range(20 * attempt, 40):
    if (rank, step, attempt) == (1, 25, 0):
        raise ConnectionResetError(104, "Connection reset by peer", "/mnt/data/shard-7")
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 5 == 0:
        print(f"step {step} / 40 loss {3 / (step + 1):.4f}", flush=True)
if rank == 0:
    print("training finished, model saved to /results/final.pt", flush=True)
dist.destroy_process_group()
