"""A batch of rank 3 is smaller than the others', and so is its tensor in the all_reduce."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, SHORT_BATCH_AT = 60, 30


def errors_of_each_sample(weights: torch.Tensor, samples: int) -> torch.Tensor:
    for _ in range(15):
        weights = torch.tanh(weights @ weights)
    return weights[:samples].contiguous()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        short = step == SHORT_BATCH_AT and rank == 3 and not HEALTHY
        errors = errors_of_each_sample(weights, samples=200 if short else 256)
        dist.all_reduce(errors)  # GUILTY
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
