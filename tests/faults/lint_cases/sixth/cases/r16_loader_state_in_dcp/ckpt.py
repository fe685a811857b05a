import os

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class AppState(Stateful):
    def __init__(self, model, optimizer, progress, loader):
        self.model = model
        self.optimizer = optimizer
        self.progress = progress
        self.loader = loader

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "progress": dict(self.progress),
                "loader": self.loader.state_dict()}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer,
                       model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.progress.update(state["progress"])
        self.loader.load_state_dict(state["loader"])


class CheckpointManager:
    def __init__(self, root):
        self.root = root

    def path(self, step):
        return os.path.join(self.root, f"step_{step}")

    def save(self, step, model, optimizer, progress, loader):
        dcp.save({"app": AppState(model, optimizer, progress, loader)}, checkpoint_id=self.path(step))

    def load(self, step, model, optimizer, progress, loader):
        dcp.load({"app": AppState(model, optimizer, progress, loader)}, checkpoint_id=self.path(step))
        dist.barrier()
