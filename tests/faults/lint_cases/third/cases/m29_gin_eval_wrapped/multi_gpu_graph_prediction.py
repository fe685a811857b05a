import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class MLP(nn.Sequential):
    def __init__(self, in_dim, hidden):
        super().__init__(nn.Linear(in_dim, 2 * hidden), nn.BatchNorm1d(2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))


class GIN(nn.Module):
    """Graph isomorphism network with a virtual node on dense adjacency matrices."""

    def __init__(self, feats=9, hidden=128, layers=4, out=1):
        super().__init__()
        self.embed = nn.Linear(feats, hidden)
        self.layers = nn.ModuleList([MLP(hidden, hidden) for _ in range(layers)])
        self.virtual = nn.ModuleList([MLP(hidden, hidden) for _ in range(layers)])
        self.pred = nn.Linear(hidden, out)

    def forward(self, adj, x):
        h = self.embed(x)
        v = h.mean(1)
        for layer, virtual in zip(self.layers, self.virtual):
            h = h + v[:, None]
            h = layer((adj @ h + h).flatten(0, 1)).view_as(h)
            v = v + virtual(h.sum(1))
        return self.pred(h.mean(1)).squeeze(-1)


def graphs(n, seed):
    g = torch.Generator().manual_seed(seed)
    adj = (torch.rand(n, 24, 24, generator=g) < 0.1).float()
    x = torch.randn(n, 24, 9, generator=g)
    y = (adj.sum((1, 2)) > adj.sum((1, 2)).median()).float()
    return TensorDataset((adj + adj.transpose(1, 2)).clamp(max=1), x, y)


@torch.no_grad()
def evaluate(dataloader, device, model):
    model.eval()
    correct, total = 0, 0
    for adj, x, y in dataloader:
        pred = model(adj.to(device), x.to(device)) > 0
        correct += (pred.float().cpu() == y).sum().item()
        total += len(y)
    return correct / total


def train(rank, world_size, args):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    train_set, valid_set, test_set = graphs(8000, 0), graphs(1000, 1), graphs(1000, 2)
    sampler = DistributedSampler(train_set)
    train_dataloader = DataLoader(train_set, args.batch_size, sampler=sampler)
    valid_dataloader = DataLoader(valid_set, args.batch_size)
    test_dataloader = DataLoader(test_set, args.batch_size)

    model = GIN().to(rank)
    model = DistributedDataParallel(model, device_ids=[rank], output_device=rank)
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.5)
    for epoch in range(args.num_epochs):
        sampler.set_epoch(epoch)
        model.train()
        for adj, x, y in train_dataloader:
            loss = F.binary_cross_entropy_with_logits(model(adj.to(rank), x.to(rank)), y.to(rank))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()

        if rank == 0:
            val_metric = evaluate(valid_dataloader, rank, model)
            test_metric = evaluate(test_dataloader, rank, model)
            print(f"Epoch: {epoch:03d}, Val: {val_metric:.4f}, Test: {test_metric:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--num_epochs", type=int, default=100)
    args = parser.parse_args()
    world_size = torch.cuda.device_count()
    mp.spawn(train, args=(world_size, args), nprocs=world_size, join=True)
