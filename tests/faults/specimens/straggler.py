"""Rank 3 computes five times as long as the others in every step; it is slow, not hung, and must not be stopped."""

import sys
import time

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, SLOW_FROM = 34, 20
USUAL_S, SLOW_S = 0.15, 0.75


def compute(weights: torch.Tensor, duration_s: float) -> torch.Tensor:
    """Compute for a fixed time, so that the duration of the job does not depend on the machine."""
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        weights = augment(normalise(weights))
    return weights


def normalise(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.norm()


def augment(weights: torch.Tensor) -> torch.Tensor:
    return torch.tanh(weights @ weights)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        slow = rank == 3 and step >= SLOW_FROM and not HEALTHY
        gradient = compute(weights, SLOW_S if slow else USUAL_S)
        dist.all_reduce(gradient)
        weights -= 1e-4 * gradient
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
