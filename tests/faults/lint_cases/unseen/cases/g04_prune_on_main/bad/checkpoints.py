"""Checkpoint directories with metadata; the best ones are kept."""
import dataclasses
import pathlib
import shutil
import time

import torch
import yaml_lite
from ddp_utils import ddp_barrier, if_main_process


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    path: pathlib.Path
    meta: dict

    @property
    def stamp(self):
        return self.meta["stamp"]


class Checkpointer:
    def __init__(self, folder, recoverables=None):
        self.folder = pathlib.Path(folder)
        self.recoverables = dict(recoverables or {})

    def add_recoverable(self, name, obj):
        self.recoverables[name] = obj

    def save_checkpoint(self, meta):
        """Writes one checkpoint from the calling process."""
        path = self.folder / f"CKPT+{meta['epoch']:04d}"
        path.mkdir(parents=True, exist_ok=True)
        for name, obj in self.recoverables.items():
            torch.save(obj.state_dict(), path / f"{name}.ckpt")
        yaml_lite.dump({**meta, "stamp": time.time()}, path / "CKPT.yaml")
        return path

    def list_checkpoints(self):
        metas = sorted(self.folder.glob("CKPT+*/CKPT.yaml"))
        return [Checkpoint(p.parent, yaml_lite.load(p)) for p in metas]

    def find_checkpoint(self, min_key):
        found = self.list_checkpoints()
        return min(found, key=lambda c: c.meta[min_key]) if found else None

    def delete_checkpoints(self, num_to_keep, min_key):
        """Deletes all but the best; nobody reads or writes the folder meanwhile."""
        ddp_barrier()
        if if_main_process():
            ranked = sorted(self.list_checkpoints(), key=lambda c: c.meta[min_key])
            for old in ranked[num_to_keep:]:
                shutil.rmtree(old.path, ignore_errors=True)
        ddp_barrier()

    def recover_if_possible(self, min_key):
        chosen = self.find_checkpoint(min_key)
        if chosen is None:
            return None
        for name, obj in self.recoverables.items():
            obj.load_state_dict(torch.load(chosen.path / f"{name}.ckpt"))
        return chosen
