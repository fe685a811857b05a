import os

import torch.distributed as dist


class NodeGroups:
    """One group per node and one group of the node leaders."""

    def __init__(self):
        self.local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        world, rank = dist.get_world_size(), dist.get_rank()
        self.node = None
        for first in range(0, world, self.local_size):
            ranks = list(range(first, min(first + self.local_size, world)))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.node = group
        self.leaders = dist.new_group(list(range(0, world, self.local_size)))
        self.is_leader = dist.get_rank(self.node) == 0
        self.leader_rank = dist.get_global_rank(self.node, 0)


def run_on_leader(groups, fn):
    """Calls ``fn`` on the first rank of each node and hands the result to the node."""
    box = [fn() if groups.is_leader else None]
    dist.broadcast_object_list(box, src=groups.leader_rank, group=groups.node)
    return box[0]


def hierarchical_mean(tensor, groups):
    dist.reduce(tensor, dst=groups.leader_rank, group=groups.node)
    if groups.is_leader:
        dist.all_reduce(tensor, group=groups.leaders)
        tensor.div_(dist.get_world_size())
    dist.broadcast(tensor, src=groups.leader_rank, group=groups.node)
    return tensor
