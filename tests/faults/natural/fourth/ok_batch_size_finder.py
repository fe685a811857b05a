"""Healthy: the largest batch that fits is searched first; the attempts print out-of-memory tracebacks and the processes agree on each.

In the style of Accelerate's find_executable_batch_size, with a reduction of the outcome and a pause of 4 s to free the memory.
"""
# case: processes=2 ending=well causes=- ranks=- framework=accelerate limit_s=120

import gc
import logging
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("finder")
BUDGET = 40_000  # activations that fit on the device of this process


class Net(nn.Module):
    """A classifier that accounts for its activations, like a device allocator."""

    def __init__(self, budget):
        super().__init__()
        self.budget = budget
        self.net = nn.Sequential(nn.Linear(30, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))

    def forward(self, x):
        needed = len(x) * 512
        if needed > self.budget:
            raise RuntimeError(f"DefaultCPUAllocator: out of memory: you tried to allocate {needed} bytes. Buy new RAM!")
        return self.net(x)


def fits(accelerator, model, batch_size):
    """Try one forward and backward pass without the wrapper; return True if all processes succeed."""
    ok = 1
    try:
        model(torch.randn(batch_size, 30)).sum().backward()
    except RuntimeError:
        log.exception("batch size %d does not fit on process %d", batch_size, accelerator.process_index)
        ok = 0
    model.zero_grad(set_to_none=True)
    gc.collect()
    outcome = accelerator.reduce(torch.tensor(ok), reduction="sum")
    if outcome.item() < accelerator.num_processes:
        time.sleep(4)
        return False
    return True


def find_batch_size(accelerator, model, start=512):
    batch_size = start
    while batch_size > 0:
        if fits(accelerator, model, batch_size):
            return batch_size
        batch_size //= 2
    raise RuntimeError("no batch size fits")


def main():
    logging.basicConfig(level=logging.INFO)
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = Net(BUDGET if accelerator.is_main_process else BUDGET // 2)
    batch_size = find_batch_size(accelerator, model)
    accelerator.print(f"batch size {batch_size}", flush=True)
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(1024, 30, generator=g), torch.randint(0, 5, (1024,), generator=g))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=batch_size, shuffle=True))
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
