"""Rank 1 enters the collectives of two groups in the opposite order, which is a deadlock."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, LATE_AT = 60, 30


def compute(weights: torch.Tensor) -> torch.Tensor:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    return gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    everyone = list(range(dist.get_world_size()))
    for_gradients, for_metrics = dist.new_group(everyone), dist.new_group(everyone)
    weights, metrics = torch.eye(256), torch.zeros(8)
    for step in range(STEPS):
        gradient = compute(weights)
        behind_schedule = step == LATE_AT and rank == 1 and not HEALTHY
        if behind_schedule:  # reports metrics first
            dist.all_reduce(metrics, group=for_metrics)  # GUILTY
            dist.all_reduce(gradient, group=for_gradients)
        else:
            dist.all_reduce(gradient, group=for_gradients)
            dist.all_reduce(metrics, group=for_metrics)
        weights -= 1e-4 * gradient
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
