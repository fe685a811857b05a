"""Processes of torch.multiprocessing.spawn; rank 1 raises, is killed, or crashes."""

import ctypes
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def normalise(pixels: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    return pixels - mean.view(1, 3, 1, 1)


def train(rank: int, world_size: int, ending: str) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    for step in range(30):
        channels = 4
        if (rank, step) == (1, 15):
            if ending == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if ending == "segfault":
                ctypes.string_at(0)
            channels = 1
        normalise(torch.ones(2, 3, 4, 4), torch.ones(3 if channels == 4 else 1))
        dist.all_reduce(torch.ones(4))
        if rank == 0 and step % 5 == 0:
            print(f"step {step} / 30 loss {3 / (step + 1):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(3, sys.argv[1]), nprocs=3)
