import os

import torch
import torch.distributed as dist


class Gang:
    """A set of processes that work collectively."""

    def __init__(self, group, device):
        self.group = group
        self.device = device
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    @staticmethod
    def init_root():
        dist.init_process_group("nccl")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return Gang(dist.group.WORLD, device)

    def create_gang(self, ranks):
        """Make a new gang out of ``ranks``; processes outside of it get ``None``."""
        if len(set(ranks)) != len(ranks):
            raise ValueError("The ranks must be unique.")
        group = dist.new_group(ranks)
        if group is None:
            return None
        return Gang(group, self.device)

    def all_reduce_sum(self, tensor):
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self.group)
        return tensor

    def all_reduce_mean(self, tensor):
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self.group)
        return tensor / self.size

    def barrier(self):
        dist.barrier(group=self.group)
