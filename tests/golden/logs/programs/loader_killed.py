"""A data-loader worker of rank 1 is killed."""

import os
import signal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Images(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if RANK == 1 and index == 100 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(4)


dist.init_process_group("gloo")
RANK = dist.get_rank()
for batch in DataLoader(Images(), batch_size=10, num_workers=1):
    dist.all_reduce(batch.sum())
