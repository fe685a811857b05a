"""Rank 3 reads its samples from a pipe whose writer has stopped; the read never returns."""

import os
import sys
import tempfile
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, DRY_AT = 60, 30


def open_samples() -> IO[bytes]:
    """Return a named pipe with a number of samples in it; its path is removed at once."""
    path = Path(tempfile.mkdtemp()) / "samples"
    os.mkfifo(path)
    pipe = path.open("r+b", buffering=0)
    path.unlink()
    path.parent.rmdir()
    pipe.write(b"sample\n" * (STEPS if HEALTHY else DRY_AT))
    return pipe


def read_sample(samples: IO[bytes]) -> bytes:
    return samples.read(7)  # GUILTY


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    samples = open_samples() if rank == 3 else None
    for step in range(STEPS):
        if samples is not None:
            read_sample(samples)
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
