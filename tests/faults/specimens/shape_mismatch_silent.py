"""Rank 2 has one class more than the others; the all_reduce of the counts may return wrong sums silently.

If the job hangs, it hangs in a later collective.
"""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, NEW_CLASS_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def count_classes(rank: int, step: int) -> torch.Tensor:
    has_new_class = rank == 2 and step == NEW_CLASS_AT and not HEALTHY
    return torch.ones(5 if has_new_class else 4)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        train_step(weights)
        counts = count_classes(rank, step)
        dist.all_reduce(counts)  # GUILTY
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
