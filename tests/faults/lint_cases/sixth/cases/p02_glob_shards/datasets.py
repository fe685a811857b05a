import glob
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


def expand_input_path(input_path):
    """Resolve a comma separated list of files or patterns."""
    files = []
    for pattern in input_path.split(","):
        files.extend(glob.glob(pattern.strip()))
    if not files:
        raise FileNotFoundError(f"no input matches {input_path}")
    return files


def slice_interval(total, index, count):
    base, extra = divmod(total, count)
    start = index * base + min(index, extra)
    return start, start + base + (1 if index < extra else 0)


class NpyTableReader(IterableDataset):
    """Streams rows of a set of .npy tables; each rank reads one interval of the row space."""

    def __init__(self, input_path, batch_size):
        self.batch_size = batch_size
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.input_files = expand_input_path(input_path)
        self.num_rows = self._collect_row_counts()

    def _collect_row_counts(self):
        local = {}
        for path in self.input_files[self.rank :: self.world_size]:
            local[os.path.basename(path)] = int(np.load(path, mmap_mode="r").shape[0])
        parts = [None] * self.world_size
        dist.all_gather_object(parts, local)
        merged = {}
        for part in parts:
            merged.update(part)
        return [merged[os.path.basename(path)] for path in self.input_files]

    def _rows(self):
        total = sum(self.num_rows)
        start, _ = slice_interval(total, self.rank, self.world_size)
        stop = start + total // self.world_size
        offset = 0
        for path, rows in zip(self.input_files, self.num_rows):
            lo, hi = max(start, offset), min(stop, offset + rows)
            if lo < hi:
                table = np.load(path, mmap_mode="r")
                yield from table[lo - offset : hi - offset]
            offset += rows

    def __iter__(self):
        batch = []
        for row in self._rows():
            batch.append(np.array(row, dtype=np.float32))
            if len(batch) == self.batch_size:
                yield torch.from_numpy(np.stack(batch))
                batch = []
