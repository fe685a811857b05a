"""Rank 2 ends without destroy_process_group while a thread of gloo has a callback to run, and is aborted for it."""

import sys
import time

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # leaves the fault out


class Journal:
    """Written when the interpreter shuts down, as loggers and trackers are: the other threads run meanwhile."""

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
