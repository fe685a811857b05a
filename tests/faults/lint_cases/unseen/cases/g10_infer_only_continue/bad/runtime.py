"""Process layout, shards and scratch files of the evaluation launcher."""
import os
import pathlib
import pickle
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.distributed as dist


def _env(name, default):
    return int(os.environ.get(name, default))


@dataclass
class Runtime:
    workdir: pathlib.Path
    rank: int = field(default_factory=lambda: _env("RANK", 0))
    world_size: int = field(default_factory=lambda: _env("WORLD_SIZE", 1))

    def __enter__(self):
        if self.world_size > 1:
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if self.is_lead:
            self.workdir.mkdir(parents=True, exist_ok=True)
        self.settle()
        return self

    def __exit__(self, *exc):
        if self.world_size > 1 and exc[0] is None:
            dist.destroy_process_group()

    @cached_property
    def is_lead(self):
        return self.rank == 0

    def shard(self, items):
        return items[self.rank :: self.world_size]

    def settle(self):
        """Scratch files written before this point are complete after it."""
        if self.world_size > 1:
            dist.barrier()  # RELATED: hidden-collective

    def scratch(self, job, rank=None):
        return self.workdir / f"{self.rank if rank is None else rank}{self.world_size}_{job}.pkl"

    def dump(self, job, obj):
        self.scratch(job).write_bytes(pickle.dumps(obj))

    def merge(self, job):
        merged = {}
        for rank in range(self.world_size):
            part = self.scratch(job, rank)
            merged.update(pickle.loads(part.read_bytes()))
            part.unlink()
        return merged
