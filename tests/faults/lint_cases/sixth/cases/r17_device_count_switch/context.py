import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

DEVICE_COUNT = torch.cuda.device_count()


@dataclass
class RunContext:
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def create(cls):
        if DEVICE_COUNT <= 1:
            return cls()
        dist.init_process_group("nccl")
        ctx = cls(dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(ctx.local_rank)
        return ctx

    @property
    def device(self):
        return torch.device("cuda", self.local_rank) if DEVICE_COUNT else torch.device("cpu")

    @property
    def is_main(self):
        return self.rank == 0

    def wrap(self, module):
        module = module.to(self.device)
        if self.world_size > 1:
            module = DistributedDataParallel(module, device_ids=[self.local_rank])
        return module

    def loader(self, dataset, batch_size):
        if self.world_size > 1:
            sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
        else:
            sampler = RandomSampler(dataset)
        return DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)

    def mean(self, value):
        tensor = torch.tensor(float(value), device=self.device)
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor.item() / self.world_size

    def close(self):
        if self.world_size > 1:
            dist.barrier()
            dist.destroy_process_group()
