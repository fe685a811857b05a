"""Rank 2 sleeps while it waits for a licence; the others wait for it in the all_reduce."""

import sys
import time

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, STUCK_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def wait_for_licence() -> None:
    time.sleep(10**6)  # GUILTY


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        if step == STUCK_AT and rank == 2 and not HEALTHY:
            wait_for_licence()
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
