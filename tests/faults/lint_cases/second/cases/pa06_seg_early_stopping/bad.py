"""Binary segmentation with a callback trainer (UNet-ish, synthetic discs)."""
from typing import Dict, List

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Discs(Dataset):
    def __init__(self, n, size=24, noise=0.6, seed=0):
        self.n, self.size, self.noise, self.seed = n, size, noise, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        cx, cy = torch.rand(2, generator=g) * self.size
        yy, xx = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        mask = (((xx - cx) ** 2 + (yy - cy) ** 2) < (self.size / 4) ** 2).float()[None]
        return mask + self.noise * torch.randn(1, self.size, self.size, generator=g), mask


class TinyUNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.down = nn.Conv2d(1, w, 3, 2, 1)
        self.mid = nn.Conv2d(w, w, 3, 1, 1)
        self.up = nn.ConvTranspose2d(w, w, 2, 2)
        self.out = nn.Conv2d(w + 1, 1, 1)

    def forward(self, x):
        h = self.up(F.relu(self.mid(F.relu(self.down(x)))))
        return self.out(torch.cat([h, x], 1))


class Callback:
    def on_validation_end(self, trainer: "Trainer", metrics: Dict[str, float]):
        pass


class EarlyStopping(Callback):
    def __init__(self, monitor="val_loss", patience=2, min_delta=5e-3):
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.best, self.wait = float("inf"), 0

    def on_validation_end(self, trainer, metrics):
        current = metrics[self.monitor]
        if current < self.best - self.min_delta:
            self.best, self.wait = current, 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            trainer.should_stop = True


class Trainer:
    def __init__(self, model, max_epochs: int, callbacks: List[Callback]):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.max_epochs, self.callbacks = max_epochs, callbacks
        self.should_stop = False

    def _call(self, hook, *args):
        for cb in self.callbacks:
            getattr(cb, hook)(self, *args)

    def train_epoch(self, loader):
        self.model.train()
        for image, mask in loader:
            loss = F.binary_cross_entropy_with_logits(self.model(image), mask)
            self.optimizer.zero_grad()
            loss.backward()  # RELATED: hidden-collective
            self.optimizer.step()

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        total = n = 0
        for image, mask in loader:
            logits = self.model.module(image)
            total += F.binary_cross_entropy_with_logits(logits, mask, reduction="sum").item()
            n += mask.numel()
        return {"val_loss": total / n}  # RELATED: source

    def fit(self, train_loader, val_loader):
        for epoch in range(self.max_epochs):
            train_loader.sampler.set_epoch(epoch)
            self.train_epoch(train_loader)
            metrics = self.validate(val_loader)
            self._call("on_validation_end", metrics)
            if self.should_stop:  # RELATED: guard
                print(f"rank {dist.get_rank()}: stopping after epoch {epoch} {metrics}", flush=True)
                break  # EXPECT: local-early-exit
        return metrics


def make_loader(ds, shuffle):
    return DataLoader(ds, batch_size=8, sampler=DistributedSampler(ds, shuffle=shuffle))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    trainer = Trainer(TinyUNet(), max_epochs=30, callbacks=[EarlyStopping(patience=2, min_delta=0.0)])
    trainer.fit(make_loader(Discs(64), True), make_loader(Discs(8, seed=1), False))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
