"""Rank 2 exits without destroy_process_group while a gloo thread has a pending callback, and aborts."""

import sys
import time

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault


class Journal:
    """Delays the interpreter's shutdown, as loggers and trackers do, while other threads run."""

    def __del__(self, sleep=time.sleep) -> None:
        sleep(1.0)


def train(steps: int) -> torch.Tensor:
    gradient = torch.ones(1000)
    for _ in range(steps):
        dist.all_reduce(gradient)
    return gradient


def main(rank: int) -> None:
    gradient = train(20)
    work = dist.all_reduce(gradient, async_op=True)
    work.get_future().then(lambda done: done)
    if rank == 2 and not HEALTHY:
        return  # GUILTY
    time.sleep(0.5)
    work.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    journal = Journal()
    main(dist.get_rank())
