import logging
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

log = logging.getLogger("train")


def latest_checkpoint(folder):
    steps = sorted(Path(folder).glob("step*"), key=lambda p: int(p.name[4:]))
    return steps[-1] if steps else None


class Trainer:
    def __init__(self, cfg, model, optimizer):
        self.cfg = cfg
        self.model = model
        self.optimizer = optimizer
        self.global_step = 0

    def _state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save_checkpoint(self):
        dcp.save(self._state(), checkpoint_id=Path(self.cfg.save_folder) / f"step{self.global_step}")

    def restore_checkpoint(self, path):
        state = self._state()
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.global_step = int(path.name[4:])

    def train_step(self):
        batch = torch.randn(self.cfg.batch_size, self.cfg.dim, device="cuda")
        loss = (self.model(batch) - batch).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self):
        while self.global_step < self.cfg.max_steps:
            loss = self.train_step()
            self.global_step += 1
            if self.global_step % 100 == 0 and dist.get_rank() == 0:
                log.info("step=%d loss=%.4f", self.global_step, loss.item())
            if self.global_step % self.cfg.save_interval == 0:
                self.save_checkpoint()
