import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class World:
    rank: int
    local_rank: int
    size: int

    @classmethod
    def from_env(cls):
        return cls(int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]))

    @property
    def is_main(self):
        return self.rank == 0

    @property
    def nodes(self):
        return self.size // int(os.environ["LOCAL_WORLD_SIZE"])


def setup():
    world = World.from_env()
    dist.init_process_group("nccl")
    if torch.distributed.is_initialized():
        torch.cuda.set_device(world.rank)
        torch.cuda.empty_cache()
    return world


def reduce_mean(value, device):
    tensor = torch.tensor(float(value), device=device)
    dist.all_reduce(tensor)
    return (tensor / dist.get_world_size()).item()
