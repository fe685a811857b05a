import math
import random

from torch.utils.data import Sampler


class ContiguousShardSampler(Sampler):
    """Every rank works on a contiguous part of the (shuffled) cut list."""

    def __init__(self, cuts, rank, world_size, shuffle=True, seed=0):
        self.cuts = cuts
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._bounds()

    def _bounds(self):
        total = len(self.cuts)
        per_partition = int(math.ceil(total / float(self.world_size)))
        self.start = self.rank * per_partition
        self.end = min(self.start + per_partition, total)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(len(self.cuts)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        return iter(order[self.start : self.end])

    def __len__(self):
        return self.end - self.start
