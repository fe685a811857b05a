"""Keeps recently used weight shards in host memory, so that switching back is cheap."""
import dataclasses
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import Dict, Optional

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

Shard = Dict[str, torch.Tensor]


def nbytes(shard: Shard) -> int:
    return sum(t.numel() * t.element_size() for t in shard.values())


class HostCache:
    """Least-recently-used store with a byte limit."""

    def __init__(self, limit: int):
        self.limit = limit
        self._items: "OrderedDict[str, Shard]" = OrderedDict()

    @property
    def used(self) -> int:
        return sum(map(nbytes, self._items.values()))

    def get(self, key: str) -> Optional[Shard]:
        shard = self._items.get(key)
        if shard is not None:
            self._items.move_to_end(key)
        return shard

    def put(self, key: str, shard: Shard) -> None:
        self._items[key] = shard
        while self.used > self.limit and len(self._items) > 1:
            old, _ = self._items.popitem(last=False)
            logger.debug("evicting %s", old)


@dataclasses.dataclass
class ShardLoader:
    """Reads this process's part of a checkpoint; large ones are prefetched in turns."""

    folder: Path
    cache: HostCache
    prefetch_fraction: float = 0.5

    @property
    def coords(self):
        return dist.get_rank(), dist.get_world_size()

    def _host_budget(self) -> int:
        """Free memory of the tightest host in the job."""
        pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        free = torch.tensor(pages * size, dtype=torch.int64)
        dist.all_reduce(free, op=dist.ReduceOp.MIN)  # RELATED: hidden-collective
        return int(free.item() * self.prefetch_fraction)

    def _cut(self, full: Shard) -> Shard:
        rank, world = self.coords
        parts = {name: t.tensor_split(world)[rank].clone() for name, t in full.items()}
        return parts

    def _read(self, name: str) -> Shard:
        path = self.folder / f"{name}.pt"
        mmap = path.stat().st_size > self._host_budget()
        full = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
        return self._cut(full)

    def load(self, name: str) -> Shard:
        shard = self.cache.get(name)
        if shard is None:  # RELATED: guard
            shard = self._read(name)  # EXPECT: local-data-branch
            self.cache.put(name, shard)
        dist.barrier()
        return shard
