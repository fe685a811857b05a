import json
import os
import re
import shutil

import torch
import torch.distributed as dist


class CheckpointStore:
    def __init__(self, root, keep):
        self.root = root
        self.keep = keep
        self.rank = dist.get_rank()

    def folder(self, step):
        return os.path.join(self.root, f"step_{step:08d}")

    def save(self, step, shared, private):
        folder = self.folder(step)
        os.makedirs(folder, exist_ok=True)
        torch.save(private, os.path.join(folder, f"rank_{self.rank}.pt"))
        if self.rank == 0:
            torch.save(shared, os.path.join(folder, "shared.pt"))
        dist.barrier()
        if self.rank == 0:
            self._point_to(step)
            self._prune()

    def _point_to(self, step):
        path = os.path.join(self.root, "latest.json")
        with open(path + ".tmp", "w") as handle:
            json.dump({"step": step, "world_size": dist.get_world_size()}, handle)
        os.replace(path + ".tmp", path)

    def _prune(self):
        found = sorted(n for n in os.listdir(self.root) if re.fullmatch(r"step_\d{8}", n))
        for name in found[: -self.keep]:
            shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)

    def latest(self):
        box = [None]
        path = os.path.join(self.root, "latest.json")
        if self.rank == 0 and os.path.exists(path):
            with open(path) as handle:
                box[0] = json.load(handle)
        dist.broadcast_object_list(box, src=0)
        if box[0] is not None and box[0]["world_size"] != dist.get_world_size():
            raise RuntimeError(f"checkpoint was written by {box[0]['world_size']} ranks")
        return None if box[0] is None else box[0]["step"]

    def load(self, step):
        folder = self.folder(step)
        shared = torch.load(os.path.join(folder, "shared.pt"), map_location="cpu")
        private = torch.load(os.path.join(folder, f"rank_{self.rank}.pt"), map_location="cpu")
        return shared, private
