"""A bad sample raises on rank 2; the exception is swallowed with `continue`, which skips that step's all_gather."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, BAD_SAMPLE_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)  # ALSO
    weights -= 1e-4 * gradient


def score_of(step: int, rank: int) -> torch.Tensor:
    if step == BAD_SAMPLE_AT and rank == 2 and not HEALTHY:
        raise ValueError("image file is truncated")
    return torch.tensor([float(step + rank)])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    scores = [torch.empty(1) for _ in range(dist.get_world_size())]
    for step in range(STEPS):
        train_step(weights)
        try:
            score = score_of(step, rank)
        except ValueError as error:
            print(f"rank {rank} leaves out a sample: {error}", flush=True)
            continue  # ALSO
        dist.all_gather(scores, score)  # GUILTY
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
