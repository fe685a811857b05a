"""Only rank 0 validates and broadcasts the score; the others never enter the broadcast and keep training."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, VALIDATE_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def validate(weights: torch.Tensor) -> torch.Tensor:
    return (weights @ weights).square().mean()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
        if step == VALIDATE_AT and not HEALTHY and rank == 0:
            score = validate(weights)
            dist.broadcast(score, src=0)  # GUILTY
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
