"""Rank 0 alone evaluates after each epoch, and the accuracy function reduces its counts over all ranks."""
# case: processes=4 ending=hang causes=rank-guarded-collective ranks=0 framework=ddp

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(20, 64)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(64, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def make_dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=g)
    return TensorDataset(x, x[:, :5].argmax(dim=1))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    stats = torch.zeros(2)
    for x, y in loader:
        stats[0] += (model(x).argmax(dim=1) == y).sum()
        stats[1] += len(y)
    dist.all_reduce(stats, op=dist.ReduceOp.SUM)  # GUILTY
    model.train()
    return (stats[0] / stats[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train_set, val_set = make_dataset(2048, 0), make_dataset(256, 1)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=64)

    model = ToyModel()
    ddp_model = DDP(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.05)

    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp_model(x), y)
            loss.backward()
            optimizer.step()
        if rank == 0:  # ALSO
            acc = accuracy(model, val_loader)  # ALSO
            print(f"epoch {epoch} loss {loss.item():.4f} val acc {acc:.3f}")
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
