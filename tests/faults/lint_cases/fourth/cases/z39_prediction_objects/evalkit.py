import os

import torch
import torch.distributed as dist


class EvalContext:
    """Process group and device of one evaluation process."""

    def __init__(self):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank)
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def shard(self, items):
        return items[self.rank :: self.world_size]

    def collect(self, rows):
        gathered = [None] * self.world_size
        dist.all_gather_object(gathered, rows)
        return [row for part in gathered for row in part]

    def close(self):
        dist.destroy_process_group()
