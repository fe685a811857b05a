import os

import torch
import torch.distributed as dist


class World:
    def __init__(self):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.is_master = self.rank == 0
