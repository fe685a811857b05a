import os

import torch
import torch.distributed as dist


class Topology:
    """Ranks laid out as (data, tensor); every row is a tensor group, every column a data group."""

    def __init__(self, tensor_size):
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        if self.world_size % tensor_size:
            raise ValueError("world size must be a multiple of the tensor size")
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        grid = torch.arange(self.world_size).view(-1, tensor_size)
        self.tensor_group = self._mine(grid.tolist())
        self.data_group = self._mine(grid.t().tolist())

    def _mine(self, rows):
        own = None
        for ranks in rows:
            group = dist.new_group(ranks)
            if self.rank in ranks:
                own = group
        return own


def create_on_leader_and_share(group, factory):
    """Run ``factory`` on the first member of ``group`` and hand its result to the others."""
    payload = [None]
    if dist.get_rank(group) == 0:
        payload[0] = factory()
    dist.broadcast_object_list(payload, src=dist.get_global_rank(group, 0), group=group)
    return payload[0]
