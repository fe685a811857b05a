import json
import os
from pathlib import Path

import torch
import torch.distributed as dist


class CheckpointManager:
    def __init__(self, directory, keep=3):
        self.directory = Path(directory)
        self.keep = keep
        self.rank = dist.get_rank()

    def _step_dir(self, step):
        return self.directory / f"step_{step:08d}"

    def save(self, step, model, optimizer, tokens_seen):
        step_dir = self._step_dir(step)
        if self.rank == 0:
            step_dir.mkdir(parents=True, exist_ok=True)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step_dir / "state.pt")
            torch.save({"step": step, "tokens_seen": tokens_seen}, step_dir / "train_state.pt")
            (step_dir / "metadata.json").write_text(json.dumps({"step": step}))
            link = self.directory / "latest.tmp"
            link.unlink(missing_ok=True)
            link.symlink_to(step_dir.name)
            os.replace(link, self.directory / "latest")
        dist.barrier()

    def load(self, model, optimizer, device):
        train_state_path = self.directory / "latest" / "train_state.pt"
        if not train_state_path.exists():
            return {"step": 0, "tokens_seen": 0}
        state = None
        if self.rank == 0:
            state = torch.load(self.directory / "latest" / "state.pt", map_location="cpu")
            state.update(torch.load(train_state_path, map_location="cpu"))
        objects = [state]
        dist.broadcast_object_list(objects, src=0)
        state = objects[0]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return {"step": state["step"], "tokens_seen": state["tokens_seen"]}
