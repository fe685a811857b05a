"""The loss does not use one head of the model."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.unused = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(self.body(x))


dist.init_process_group("gloo")
model = DistributedDataParallel(TwoHeads())
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
