"""Image classifier (timm-like): the EMA copy is evaluated on the primary rank after every epoch."""
import copy
from functools import cached_property

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def is_primary():
    return dist.get_rank() == 0


def unwrap(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.98):
        super().__init__()
        self.module = copy.deepcopy(unwrap(model)).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        src = unwrap(model).state_dict()
        for k, v in self.module.state_dict().items():
            if v.dtype.is_floating_point:
                v.lerp_(src[k], 1 - self.decay)
            else:
                v.copy_(src[k])

    def forward(self, x):
        return self.module(x)


class ConvNet(nn.Module):
    def __init__(self, classes=5, w=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, w, 3, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(),
        )
        self.fc = nn.Linear(2 * w, classes)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


def synth(n, seed, classes=5):
    proto = torch.randn(classes, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(proto[y] + 1.5 * torch.randn(n, 3, 16, 16, generator=g), y)


class Evaluator:
    def __init__(self, loader):
        self.loader = loader

    @torch.no_grad()
    def top1(self, model):
        correct = total = 0
        for x, y in self.loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += len(y)
        return 100.0 * correct / total


class Session:
    def __init__(self, epochs):
        self.epochs = epochs
        self.model = DistributedDataParallel(ConvNet())
        self.ema = ModelEma(self.model)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.best = None

    @cached_property
    def evaluator(self):
        return Evaluator(DataLoader(synth(200, 1), batch_size=50))

    def train_one_epoch(self, loader):
        self.model.train()
        for x, y in loader:
            loss = F.cross_entropy(self.model(x), y, label_smoothing=0.1)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            self.ema.update(self.model)

    def summarize(self, epoch):
        acc = self.evaluator.top1(self.ema)
        self.best = max(acc, self.best or 0.0)
        print(f"epoch {epoch}: ema top1 {acc:.2f} (best {self.best:.2f})", flush=True)

    def run(self, loader):
        for epoch in range(self.epochs):
            loader.sampler.set_epoch(epoch)
            self.train_one_epoch(loader)
            if is_primary():
                self.summarize(epoch)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train = synth(256, 0)
    loader = DataLoader(train, batch_size=16, sampler=DistributedSampler(train), drop_last=True)
    Session(epochs=3).run(loader)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
