"""Rank 2 has a different configuration and calls reduce where the others call all_reduce."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, CONFIGURATION_CHANGES_AT = 60, 30


def gradient_of(weights: torch.Tensor) -> torch.Tensor:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    return gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    operation, destination = dist.all_reduce, {}
    for step in range(STEPS):
        gradient = gradient_of(weights)
        if step == CONFIGURATION_CHANGES_AT and rank == 2 and not HEALTHY:
            operation, destination = dist.reduce, {"dst": 0}
        operation(gradient, **destination)  # GUILTY
        weights -= 1e-4 * gradient
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
