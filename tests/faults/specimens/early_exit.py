"""Rank 3 alone detects convergence and exits with status 0 in the middle of the training loop."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, CONVERGED_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        if step == CONVERGED_AT and rank == 3 and not HEALTHY:
            sys.exit(0)  # GUILTY
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
