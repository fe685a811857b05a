import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save_second_moments_as_optimizer_pt(model, optimizer, path):
    """Writes the second moments of Adam in the format of a plain optimizer state."""
    index = {p: i for i, p in enumerate(model.parameters())}
    state = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            moments = optimizer.state.get(p)
            if not moments:
                continue
            state[index[p]] = {
                "step": moments["step"],
                "exp_avg_sq": full(moments["exp_avg_sq"]).cpu(),
            }
    if not dist.is_initialized() or dist.get_rank() == 0:
        os.makedirs(path, exist_ok=True)
        torch.save({"state": state}, os.path.join(path, "optimizer.pt"))
