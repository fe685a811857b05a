import os

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


def files_of_rank(folder, rank, world_size):
    names = sorted(n for n in os.listdir(folder) if n.endswith(".pt"))
    if len(names) < world_size:
        raise ValueError(f"{len(names)} shards for {world_size} ranks")
    return [os.path.join(folder, n) for n in names[rank::world_size]]


class ShardStream(IterableDataset):
    """Batches of this rank's shards; shards (and ranks) differ in their number of rows."""

    def __init__(self, files, batch_size, seed):
        self.files = files
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def rows(self):
        return sum(torch.load(path)["label"].shape[0] // self.batch_size for path in self.files)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        for i in torch.randperm(len(self.files), generator=generator).tolist():
            shard = torch.load(self.files[i])
            order = torch.randperm(shard["label"].shape[0], generator=generator)
            for index in order.split(self.batch_size):
                if len(index) == self.batch_size:
                    yield {k: v[index] for k, v in shard.items()}


def common_steps(stream, device):
    steps = torch.tensor(stream.rows(), device=device)
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    return int(steps.item())
