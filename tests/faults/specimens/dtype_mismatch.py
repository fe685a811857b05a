"""Only rank 1 falls back from half to full precision: the dtype of its all_reduce differs."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, OVERFLOW_AT = 60, 30


def gradient_of(weights: torch.Tensor) -> torch.Tensor:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    return gradient


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    dtype = torch.float16
    for step in range(STEPS):
        if step == OVERFLOW_AT and rank == 1 and not HEALTHY:
            dtype = torch.float32  # "my gradients overflowed"
        gradient = gradient_of(weights).to(dtype)
        dist.all_reduce(gradient)  # GUILTY
        weights -= 1e-4 * gradient.float()
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
