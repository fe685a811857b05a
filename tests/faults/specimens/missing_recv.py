"""Rank 0 sends activations to rank 1, which never calls recv; the other ranks wait in the all_reduce."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, LOST_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def pass_on(rank: int, weights: torch.Tensor, *, forgotten: bool) -> None:
    activations = weights.repeat(32, 1)  # 8 MiB
    if rank == 0:
        dist.send(activations, dst=1)
    elif rank == 1 and not forgotten:
        dist.recv(activations, src=0)  # GUILTY


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        pass_on(rank, weights, forgotten=step == LOST_AT and not HEALTHY)
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
