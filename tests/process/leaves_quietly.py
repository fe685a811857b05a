"""Rank 1 calls os._exit in the middle of training: no exception, no exit handlers, no output."""

import os

import torch
import torch.distributed as dist

STEPS, LEAVES_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def main() -> None:
    dist.init_process_group("gloo")
    weights = torch.eye(64)
    for step in range(STEPS):
        if step == LEAVES_AT and dist.get_rank() == 1:
            os._exit(7)
        train_step(weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
