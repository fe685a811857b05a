"""SimCLR pretraining: data module, callbacks, cosine schedule."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class TwoViews:
    def __init__(self, strength=0.2):
        self.strength = strength

    def __call__(self, x):
        return x + self.strength * torch.randn_like(x), (x + self.strength * torch.randn_like(x)).flip(-1)


class Patterns(Dataset):
    def __init__(self, n=256, transform=None):
        g = torch.Generator().manual_seed(9)
        proto = torch.randn(8, 3, 16, 16, generator=g)
        self.x = proto[torch.arange(n) % 8] + 0.5 * torch.randn(n, 3, 16, 16, generator=g)
        self.transform = transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return (*self.transform(self.x[i]), i)


class PretrainData:
    def __init__(self, batch_size):
        self.batch_size = batch_size
        self.train_set = Patterns(transform=TwoViews())

    def train_dataloader(self):
        sampler = DistributedSampler(self.train_set, shuffle=True)  # RELATED: source
        return DataLoader(self.train_set, self.batch_size, sampler=sampler, drop_last=True)


class SimCLR(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, dim, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, a, b):
        za, zb = (F.normalize(self.projector(self.backbone(v)), dim=-1) for v in (a, b))
        return za, zb


def nt_xent(za, zb, t=0.2):
    z = torch.cat([za, zb])
    sim = (z @ z.t() / t).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e4)
    target = (torch.arange(len(z)) + len(za)) % len(z)
    return F.cross_entropy(sim, target)


class Callback:
    def on_epoch_start(self, trainer): ...
    def on_epoch_end(self, trainer): ...


class CosineLR(Callback):
    def __init__(self, base):
        self.base = base

    def on_epoch_start(self, trainer):
        lr = self.base * 0.5 * (1 + math.cos(math.pi * trainer.epoch / trainer.max_epochs))
        for group in trainer.optimizer.param_groups:
            group["lr"] = lr


class Progress(Callback):
    def on_epoch_end(self, trainer):
        if dist.get_rank() == 0:
            print(f"epoch {trainer.epoch}: loss {trainer.last_loss:.4f}, first ids {trainer.first_ids}", flush=True)


class PretrainLoop:
    def __init__(self, model, max_epochs, callbacks):
        self.model = DDP(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        self.max_epochs, self.callbacks = max_epochs, callbacks
        self.last_loss, self.first_ids = float("nan"), []

    def notify(self, event):
        for cb in self.callbacks:
            getattr(cb, event)(self)

    def run_epoch(self, loader):
        for i, (a, b, ids) in enumerate(loader):
            loss = nt_xent(*self.model(a, b))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.last_loss = loss.item()
            if i == 0:
                self.first_ids = ids[:4].tolist()

    def fit(self, data):
        loader = data.train_dataloader()
        for self.epoch in range(self.max_epochs):  # EXPECT: missing-set-epoch
            self.notify("on_epoch_start")
            self.run_epoch(loader)
            self.notify("on_epoch_end")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    PretrainLoop(SimCLR(), max_epochs=4, callbacks=[CosineLR(0.1), Progress()]).fit(PretrainData(32))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
