import os
import re
import shutil

import torch
import torch.distributed as dist

PATTERN = re.compile(r"^checkpoint-(\d+)$")


class CheckpointRotator:
    """Writes ``checkpoint-<step>`` folders and keeps at most ``save_total_limit`` of them."""

    def __init__(self, output_dir, save_total_limit, local_rank):
        self.output_dir = output_dir
        self.save_total_limit = save_total_limit
        self.local_rank = local_rank
        self.best_checkpoint = None

    @property
    def should_save(self):
        return dist.get_rank() == 0

    @property
    def is_local_process_zero(self):
        return self.local_rank == 0

    def sorted_checkpoints(self):
        found = []
        for name in os.listdir(self.output_dir):
            match = PATTERN.match(name)
            if match:
                found.append((int(match.group(1)), os.path.join(self.output_dir, name)))
        return [path for _, path in sorted(found)]

    def save(self, step, state, is_best):
        folder = os.path.join(self.output_dir, f"checkpoint-{step}")
        if self.should_save:
            os.makedirs(folder, exist_ok=True)
            torch.save(state, os.path.join(folder, "pytorch_model.bin"))
        if is_best or self.best_checkpoint is None:
            self.best_checkpoint = folder
        dist.barrier()
        if self.is_local_process_zero:
            self.rotate(latest=folder)
        dist.barrier()

    def rotate(self, latest):
        checkpoints = self.sorted_checkpoints()
        excess = len(checkpoints) - self.save_total_limit
        for path in checkpoints:
            if excess <= 0:
                break
            if path in (self.best_checkpoint, latest):
                continue
            print(f"Deleting older checkpoint [{path}] due to save_total_limit")
            shutil.rmtree(path)
            excess -= 1

    def load_best(self, model):
        path = os.path.join(self.best_checkpoint, "pytorch_model.bin")
        model.load_state_dict(torch.load(path, map_location="cpu"))
