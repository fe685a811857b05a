"""Segmentation fine-tuning; the stop decision of rank 0's patience counter is broadcast."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_masks(n, seed):
    g = torch.Generator().manual_seed(seed)
    mask = (F.interpolate(torch.rand(n, 1, 4, 4, generator=g), size=16) > 0.5).float()
    return TensorDataset(mask + 0.8 * torch.randn(n, 1, 16, 16, generator=g), mask)


class Patience:
    def __init__(self, rounds, min_delta):
        self.rounds, self.min_delta = rounds, min_delta
        self.best, self.stale = float("inf"), 0

    def exhausted(self, value):
        if value < self.best - self.min_delta:
            self.best, self.stale = value, 0
        else:
            self.stale += 1
        return self.stale >= self.rounds


class StopPolicy:
    """Stops on patience or when the job's time slice is nearly over."""

    def __init__(self, patience, budget_s):
        self.patience, self.deadline = patience, time.monotonic() + budget_s

    def wants_stop(self, val_loss):
        return self.patience.exhausted(val_loss) or time.monotonic() > self.deadline

    def decide(self, val_loss):
        flag = torch.zeros(1, dtype=torch.uint8)
        if dist.get_rank() == 0:
            flag.fill_(int(self.wants_stop(val_loss)))
        dist.broadcast(flag, src=0)
        return bool(flag.item())


class Finetuner:
    def __init__(self, net, policy, max_epochs):
        self.net, self.policy, self.max_epochs = DDP(net), policy, max_epochs
        self.optim = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def train_epoch(self, loader):
        self.net.train()
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(self.net(x), y)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()

    @torch.no_grad()
    def local_val_loss(self, loader):
        self.net.eval()
        losses = [F.binary_cross_entropy_with_logits(self.net.module(x), y).item() for x, y in loader]
        return sum(losses) / len(losses)

    def fit(self, train, val):
        epoch = 0
        while epoch < self.max_epochs:
            train.sampler.set_epoch(epoch)
            self.train_epoch(train)
            val_loss = self.local_val_loss(val)
            print(f"rank {dist.get_rank()} epoch {epoch} val {val_loss:.4f}", flush=True)
            if self.policy.decide(val_loss):
                break
            epoch += 1
        return epoch


def build_net(w=8):
    return nn.Sequential(nn.Conv2d(1, w, 3, 1, 1), nn.ReLU(), nn.Conv2d(w, w, 3, 1, 1), nn.ReLU(), nn.Conv2d(w, 1, 1))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, val = make_masks(128, 0), make_masks(32, 1)
    train_loader = DataLoader(train, 8, sampler=DistributedSampler(train))
    val_loader = DataLoader(val, 32)
    tuner = Finetuner(build_net(), StopPolicy(Patience(2, 1e-2), budget_s=600), max_epochs=15)
    last = tuner.fit(train_loader, val_loader)
    total = torch.tensor([last])
    dist.all_reduce(total)
    assert total.item() == last * dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
