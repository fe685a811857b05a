import os

import torch
import torch.distributed as dist


class ParallelState:
    """Replicas of ``shard_size`` consecutive ranks; optimizer work is shared inside a replica."""

    def __init__(self, shard_size):
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        if self.world_size % shard_size:
            raise ValueError(f"world size {self.world_size} is not a multiple of {shard_size}")
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        self.shard_group = None
        for first in range(0, self.world_size, shard_size):
            ranks = list(range(first, first + shard_size))
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.shard_group = group
        self.shard_rank = dist.get_rank(self.shard_group)
        self.shard_size = shard_size
