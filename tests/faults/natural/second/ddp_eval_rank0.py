"""Rank 0 alone validates through the DDP wrapper, whose forward broadcasts batch-norm buffers; the others are at a barrier.

Modelled on pytorch/pytorch#54059 ("Using torch.distributed.barrier() makes the whole code hang").
"""
# case: processes=4 ending=hang causes=rank-guarded-collective,collective-mismatch,mismatched-operation,rank-missing-collective ranks=0 framework=ddp

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class SmallNet(nn.Module):
    def __init__(self, classes: int = 10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 3, 16, 16, generator=g), torch.randint(0, 10, (n,), generator=g))


def train_epoch(model, loader, optimizer):
    model.train()
    for images, target in loader:
        loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = total = 0
    for images, target in loader:
        output = model(images)  # GUILTY
        correct += (output.argmax(1) == target).sum().item()
        total += target.numel()
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(SmallNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    train_set = make_data(512, seed=1)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    val_loader = DataLoader(make_data(128, seed=2), batch_size=args.batch_size)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, train_loader, optimizer)
        if rank == 0:
            accuracy = validate(model, val_loader)  # ALSO
            print(f"epoch {epoch} loss {loss:.3f} val acc {accuracy:.3f}", flush=True)
        dist.barrier()  # ALSO

    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
