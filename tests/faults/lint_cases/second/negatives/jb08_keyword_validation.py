"""Keyword spotting with DDP; the main process scores a small dev set between epochs."""
import os
from functools import partial

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORDS, MELS, FRAMES = 8, 16, 32


def unwrap(model):
    while isinstance(model, DDP):
        model = model.module
    return model


def clips(count, seed):
    gen = torch.Generator().manual_seed(seed)
    patterns = torch.randn(WORDS, MELS, FRAMES, generator=torch.Generator().manual_seed(77))
    words = torch.randint(0, WORDS, (count,), generator=gen)
    return TensorDataset(patterns[words] + torch.randn(count, MELS, FRAMES, generator=gen), words)


class Spotter(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(MELS, width, 5, stride=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2), nn.BatchNorm1d(width), nn.ReLU(),
        )
        self.out = nn.Linear(width, WORDS)

    def forward(self, mel):
        return self.out(self.conv(mel).mean(-1))


class Hooks:
    def __init__(self):
        self.table = {}

    def on(self, event, call):
        self.table.setdefault(event, []).append(call)

    def fire(self, event, **kwargs):
        for call in self.table.get(event, ()):
            call(**kwargs)


class DevScore:
    def __init__(self, model, loader, device):
        self.model, self.loader, self.device = unwrap(model), loader, device
        self.best = 0.0

    @torch.no_grad()
    def _accuracy(self):
        self.model.eval()
        hits = total = 0
        for mel, word in self.loader:
            hits += (self.model(mel.to(self.device)).argmax(-1).cpu() == word).sum().item()
            total += len(word)
        self.model.train()
        return hits / total

    def __call__(self, epoch, **_):
        accuracy = self._accuracy()
        self.best = max(self.best, accuracy)
        print(f"epoch {epoch} dev accuracy {accuracy:.3f} best {self.best:.3f}", flush=True)


def on_main(call):
    def guarded(**kwargs):
        if dist.get_rank() == 0:
            call(**kwargs)
    return guarded


def train_epoch(model, optimizer, loader, sampler, hooks, device, epoch):
    sampler.set_epoch(epoch)
    for mel, word in loader:
        loss = F.cross_entropy(model(mel.to(device)), word.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hooks.fire("epoch_end", epoch=epoch, loss=loss.detach())


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    train = clips(512, seed=1)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    model = DDP(Spotter().to(device), device_ids=[local_rank] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    hooks = Hooks()
    hooks.on("epoch_end", on_main(DevScore(model, DataLoader(clips(128, seed=2), batch_size=32), device)))
    hooks.on("epoch_end", lambda **_: dist.barrier())
    run_epoch = partial(train_epoch, model, optimizer, loader, sampler, hooks, device)
    for epoch in range(3):
        run_epoch(epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
