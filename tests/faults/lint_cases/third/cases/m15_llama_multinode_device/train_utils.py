import math
import os

import torch
import torch.distributed as dist
from torch import nn


def setup_environ_flags(rank):
    os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
    os.environ["NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if rank == 0:
        print("--> running with torch dist debug set to detail")


def lm_loss(model, ids):
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def train(model, loader, optimizer, device_index):
    model.train()
    for (ids,) in loader:
        loss = lm_loss(model, ids.to(f"cuda:{device_index}"))
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def evaluation(model, loader, device_index):
    model.eval()
    total = torch.zeros(2, device=f"cuda:{device_index}")
    for (ids,) in loader:
        total[0] += lm_loss(model, ids.to(f"cuda:{device_index}"))
        total[1] += 1
    dist.all_reduce(total)
    return math.exp((total[0] / total[1]).item())
