"""A DataLoader worker of rank 2 hangs in its dataset; rank 2 waits for the batch, the others for rank 2."""

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

HEALTHY = "--healthy" in sys.argv  # disables the fault
BATCHES, BATCH_SIZE, FAULT_AT = 60, 4, 30


class Samples(Dataset):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == FAULT_AT * BATCH_SIZE and self.rank == 2 and not HEALTHY:
            time.sleep(10**6)  # ALSO
        return torch.randn(256)


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step, _ in enumerate(  # GUILTY
        DataLoader(Samples(rank), batch_size=BATCH_SIZE, num_workers=1)
    ):
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
