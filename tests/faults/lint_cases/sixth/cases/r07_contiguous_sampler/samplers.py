import math

import torch.distributed as dist
from torch.utils.data import Sampler


class ContiguousSampler(Sampler):
    """Gives every rank one contiguous, batch-aligned piece of the data set.

    Nothing is repeated and nothing is dropped: the first ranks take one batch more
    when the number of batches is not a multiple of the number of ranks.
    """

    def __init__(self, dataset, batch_size, num_replicas=None, rank=None):
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.total_size = len(dataset)
        self.batch_size = batch_size
        self.num_batches = math.ceil(self.total_size / batch_size)

    def bounds(self):
        per_rank, remainder = divmod(self.num_batches, self.num_replicas)
        first = self.rank * per_rank + min(self.rank, remainder)
        count = per_rank + (1 if self.rank < remainder else 0)
        start = first * self.batch_size
        end = min((first + count) * self.batch_size, self.total_size)
        return start, end

    def __iter__(self):
        start, end = self.bounds()
        return iter(range(start, end))

    def __len__(self):
        start, end = self.bounds()
        return end - start
