import glob
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


class TokensDataset(IterableDataset):
    """Streams fixed blocks of tokens out of chunk files, one part of the chunks per rank."""

    def __init__(self, input_dir, block_size):
        self.chunks = sorted(glob.glob(os.path.join(input_dir, "chunk-*.npy")))
        self.block_size = block_size
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def __iter__(self):
        for chunk in self.chunks[self.rank :: self.world_size]:
            tokens = np.load(chunk, mmap_mode="r")
            n = len(tokens) // (self.block_size + 1)
            for i in range(n):
                block = tokens[i * (self.block_size + 1) : (i + 1) * (self.block_size + 1)]
                block = torch.from_numpy(block.astype(np.int64))
                yield block[:-1], block[1:]
