"""Checkpoint files for data-parallel runs.

The folder of a run carries a timestamp, so the first process names it and tells the rest.
"""
from __future__ import annotations

import datetime as dt
import logging
import random
from pathlib import Path

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


class CheckpointWriter:
    def __init__(self, root, model, optimizer, keep=2):
        self.root = Path(root)
        self.model, self.optimizer = model, optimizer
        self.keep = keep
        self._kept: list[Path] = []

    @property
    def bare_model(self):
        return getattr(self.model, "module", self.model)

    def _name(self, tag, step):
        """One name for all processes; the clock and the suffix come from the first."""
        stamp = dt.datetime.now().strftime("%H%M%S")
        box = [f"{tag}-{step:06d}-{stamp}-{random.getrandbits(16):04x}"]
        if dist.is_initialized():
            dist.broadcast_object_list(box, src=0)  # RELATED: hidden-collective
        return box[0]

    def save(self, tag, step):
        """Model and optimizer from the first process, random state from each process."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        folder = self.root / self._name(tag, step)
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            torch.save({"model": self.bare_model.state_dict(), "step": step}, folder / "model.pt")
            torch.save(self.optimizer.state_dict(), folder / "optim.pt")
            self._rotate(folder)
        torch.save(torch.get_rng_state(), folder / f"rng-{rank}.pt")
        if dist.is_initialized():
            dist.barrier()
        return folder

    def dump(self, tag, step):
        """Everything this process has, in a file of its own."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / f"{tag}-{step:06d}-rank{rank}.pt"
        torch.save({"model": self.bare_model.state_dict(), "rng": torch.get_rng_state()}, path)
        return path

    def _rotate(self, folder):
        self._kept.append(folder)
        while len(self._kept) > self.keep:
            old = self._kept.pop(0)
            for item in old.iterdir():
                item.unlink()
            old.rmdir()
            logger.info("dropped %s", old.name)
