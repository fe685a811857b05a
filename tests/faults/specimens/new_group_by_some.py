"""Only rank 0 creates a process group of all ranks to write a checkpoint; the others keep training."""

import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, CHECKPOINT_AT = 60, 30


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def save_checkpoint() -> None:
    group = dist.new_group(backend="gloo")  # GUILTY
    dist.barrier(group=group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
        if step == CHECKPOINT_AT and (rank == 0 or HEALTHY):
            save_checkpoint()  # ALSO
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
