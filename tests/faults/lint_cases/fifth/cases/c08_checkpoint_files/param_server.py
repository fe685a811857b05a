import torch
import torch.distributed as dist
from safetensors import safe_open


class ParameterServer:
    """Holds a part of the checkpoint in pinned memory and broadcasts it to all ranks."""

    def __init__(self, device):
        self.device = device
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.pool = {}
        self.metas = []

    def register_checkpoint(self, files):
        for path in files:
            with safe_open(path, framework="pt", device="cpu") as f:
                for name in f.keys():
                    self.pool[name] = f.get_tensor(name).pin_memory()

    def gather_metas(self):
        local = [(name, tuple(t.shape), t.dtype) for name, t in sorted(self.pool.items())]
        self.metas = [None] * self.world_size
        dist.all_gather_object(self.metas, local)

    def update(self, load_weight):
        count = 0
        for owner, entries in enumerate(self.metas):
            for name, shape, dtype in entries:
                if owner == self.rank:
                    buffer = self.pool[name].to(self.device, non_blocking=True)
                else:
                    buffer = torch.empty(shape, dtype=dtype, device=self.device)
                dist.broadcast(buffer, src=owner)
                load_weight(name, buffer)
                count += 1
        return count
