import torch.distributed as dist


class Topology:
    """Ranks of the same node form one group; rank i of every node forms another."""

    def __init__(self, gpus_per_node):
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.gpus_per_node = gpus_per_node
        self.nodes = self.world_size // gpus_per_node
        self.node = self.rank // gpus_per_node
        self.local = self.rank % gpus_per_node
        self.intra = self._intra_group()
        self.inter = self._inter_group()

    def _intra_group(self):
        first = self.node * self.gpus_per_node
        return dist.new_group(ranks=list(range(first, first + self.gpus_per_node)))

    def _inter_group(self):
        members = [n * self.gpus_per_node + self.local for n in range(self.nodes)]
        return dist.new_group(ranks=members)
