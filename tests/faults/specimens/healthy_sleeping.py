"""A healthy job with a long wait before its first step: rank 0 waits for a download, the others in a barrier."""

import sys
import time

import torch
import torch.distributed as dist

LONG_S = (
    1.0 if "--healthy" in sys.argv else 12.0
)  # there is no fault to disable: --healthy shortens the long wait
STEPS = 60


def wait_for_download() -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        time.sleep(0.5)


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        wait_for_download()
    dist.barrier()
    weights = torch.eye(256)
    for step in range(STEPS):
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
