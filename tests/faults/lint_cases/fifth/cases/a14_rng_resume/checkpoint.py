import logging
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

log = logging.getLogger(__name__)


def rng_state():
    return {"torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}


def restore_rng(state):
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["cuda"])


class Checkpointer:
    def __init__(self, root):
        self.root = Path(root)
        self.tracker = self.root / "latest_checkpointed_iteration.txt"

    def directory(self, iteration):
        return self.root / f"iter_{iteration:07d}"

    def save(self, iteration, model, optimizer):
        directory = self.directory(iteration)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=directory)
        if dist.get_rank() == 0:
            torch.save(rng_state(), directory / "rng.pt")
        dist.barrier()
        if dist.get_rank() == 0:
            self.tracker.write_text(str(iteration))
            log.info("saved iteration %d", iteration)

    def load(self, model, optimizer):
        if not self.tracker.exists():
            return 0
        iteration = int(self.tracker.read_text())
        directory = self.directory(iteration)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=directory)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        path = directory / "rng.pt"
        if path.exists():
            restore_rng(torch.load(path, map_location="cpu"))
        dist.barrier()
        return iteration
