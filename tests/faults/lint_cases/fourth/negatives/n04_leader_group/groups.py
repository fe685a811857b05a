import os

import torch.distributed as dist


class NodeLayout:
    def __init__(self):
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.node_group = None
        for start in range(0, self.world_size, self.per_node):
            ranks = list(range(start, start + self.per_node))
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.node_group, self.leader = group, start
        self.leaders = dist.new_group(list(range(0, self.world_size, self.per_node)))

    @property
    def is_leader(self):
        return self.rank == self.leader
