"""A rank that sees a non-finite loss skips backward() with `continue`, so it is one gradient all-reduce behind.

Modelled on OpenBMB/BMTrain#108 ("how to skip one iter for all ranks") and Lightning-AI/pytorch-lightning#6430.
"""
# case: processes=4 ending=hang causes=rank-skips-collective,rank-missing-collective,collective-mismatch,uneven-inputs ranks=2 framework=ddp

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class SensorWindows(Dataset):
    """Windows of a recorded signal; a few recordings contain overflowed readings."""

    def __init__(self, windows=480, length=32):
        g = torch.Generator().manual_seed(7)
        self.x = torch.randn(windows, length, generator=g)
        self.y = self.x.mean(dim=1, keepdim=True) * 3 + 1
        self.x[202, 5] = float("inf")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Regressor(nn.Module):
    def __init__(self, length=32, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(length, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)

    model = DDP(Regressor())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = SensorWindows()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    criterion = nn.MSELoss()

    for epoch in range(3):
        sampler.set_epoch(epoch)
        running = 0.0
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(x), y)
            if not math.isfinite(loss.item()):
                continue  # GUILTY
            loss.backward()  # ALSO
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            running += loss.item()
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item():.4f}", flush=True)
        dist.barrier()  # ALSO
        if rank == 0:
            print(f"epoch {epoch} done, mean loss {running / len(loader):.4f}", flush=True)
            torch.save(model.module.state_dict(), "/dev/null")
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
