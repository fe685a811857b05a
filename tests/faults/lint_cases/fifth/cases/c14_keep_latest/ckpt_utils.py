import os
import re

import torch
import torch.distributed as dist

PATTERN = re.compile(r"epoch_(\d+)_step_(\d+)")


def rank_zero_read_and_broadcast(fn):
    """Run fn on rank 0 and give the result to all ranks."""

    def wrapped(*args, **kwargs):
        result = [fn(*args, **kwargs) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(result, src=0)
        return result[0]

    return wrapped


@rank_zero_read_and_broadcast
def get_latest_checkpoint_path(dirpath):
    if not os.path.isdir(dirpath):
        return None
    found = [(tuple(map(int, m.groups())), m.string) for m in map(PATTERN.fullmatch, os.listdir(dirpath)) if m]
    if not found:
        return None
    return os.path.join(dirpath, max(found)[1])


def save(dirpath, epoch, step, model, optimizer):
    if dist.get_rank() == 0:
        folder = os.path.join(dirpath, f"epoch_{epoch}_step_{step}")
        os.makedirs(folder, exist_ok=True)
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": epoch, "step": step},
                   os.path.join(folder, "state.pt"))
    dist.barrier()
