"""Rank 1 reads a label out of range and raises an exception; the others lose their peer."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, BAD_LABEL_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def check_label(label: int) -> None:
    if label >= 10:
        raise ValueError(f"label {label} is not one of the 10 classes")  # GUILTY


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        check_label(11 if step == BAD_LABEL_AT and rank == 1 and not HEALTHY else 3)
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
