import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Context:
    rank: int
    local_rank: int
    world_size: int

    @property
    def is_main(self):
        return self.rank == 0


def setup():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    return Context(dist.get_rank(), local_rank, dist.get_world_size())


def ddp_wrap(model, ctx):
    return DistributedDataParallel(model, device_ids=[ctx.local_rank])


def unwrap(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def cleanup():
    dist.barrier()
    dist.destroy_process_group()
