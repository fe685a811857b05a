"""Reentrant checkpointing of a shared layer: its gradient is marked ready twice."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Shared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


dist.init_process_group("gloo")
model = DistributedDataParallel(Shared(), find_unused_parameters=True)
model(torch.ones(2, 8, requires_grad=True)).sum().backward()
