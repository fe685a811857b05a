"""Batches are larger than the container's /dev/shm."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3, 512, 512)


dist.init_process_group("gloo")
for batch in DataLoader(Images(), batch_size=16, num_workers=2):
    dist.all_reduce(batch.mean())
