from pathlib import Path

import torch
import torch.distributed as dist


class Checkpoints:
    def __init__(self, root, keep=2):
        self.root, self.keep = Path(root), keep
        self.main = dist.get_rank() == 0
        if self.main:
            self.root.mkdir(parents=True, exist_ok=True)
        dist.barrier()

    def _all(self):
        return sorted(self.root.glob("epoch_*.pt"))

    def newest(self):
        box = [None]
        if self.main:
            found = self._all()
            box = [str(found[-1]) if found else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def save(self, state, epoch):
        if self.main:
            path = self.root / f"epoch_{epoch:04d}.pt"
            temporary = path.with_suffix(".part")
            torch.save(state, temporary)
            temporary.rename(path)
        dist.barrier()

    def prune(self):
        dist.barrier()
        if self.main:
            for old in self._all()[: -self.keep]:
                old.unlink()

    def load(self, device):
        path = self.newest()
        return None if path is None else torch.load(path, map_location=device)
