"""Ranks 0 and 1 create a group of their own, which works; the next new_group on all ranks hangs.

torch names groups by the number of new_group calls, so the ranks rendezvous under different names.
"""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, EVALUATE_AT, SAVE_AT = 60, 20, 30
EVALUATORS = [0, 1]


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def evaluate(rank: int, weights: torch.Tensor) -> None:
    if rank in EVALUATORS or HEALTHY:
        group = dist.new_group(EVALUATORS)  # GUILTY
    if rank in EVALUATORS:
        dist.all_reduce(weights.square().mean(), group=group)


def save_checkpoint() -> None:
    group = dist.new_group()  # ALSO
    dist.barrier(group=group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
        if step == EVALUATE_AT:
            evaluate(rank, weights)
        if step == SAVE_AT:
            save_checkpoint()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
