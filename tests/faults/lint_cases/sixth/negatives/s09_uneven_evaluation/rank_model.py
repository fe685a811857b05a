import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from gathering import gather_rows, reduce_sums


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype, device=scores.device)
    positive = labels > 0.5
    n_pos, n_neg = positive.sum(), (~positive).sum()
    return ((ranks[positive].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg).clamp(min=1)).item()


class Trainer:
    def __init__(self, net, device, lr):
        self.device = device
        self.model = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def fit_epoch(self, loader, epoch):
        self.model.train()
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(self.model(x.to(self.device)).squeeze(1), y.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, loader):
        net = self.model.module.eval()
        rows = [torch.zeros(0, 2, device=self.device)]
        sums = {k: torch.zeros((), device=self.device) for k in ("nll", "hits", "count")}
        for x, y in loader:
            y = y.to(self.device)
            logits = net(x.to(self.device)).squeeze(1)
            sums["nll"] += F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
            sums["hits"] += ((logits > 0) == (y > 0.5)).sum()
            sums["count"] += len(y)
            rows.append(torch.stack([logits, y], dim=1))
        table = gather_rows(torch.cat(rows)).double()
        total = reduce_sums(sums)
        return {"auc": auc(table[:, 0], table[:, 1]), "nll": total["nll"] / total["count"],
                "acc": total["hits"] / total["count"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    blob = torch.load(args.data, map_location="cpu")
    train, test = TensorDataset(*blob["train"]), TensorDataset(*blob["test"])
    loader = DataLoader(train, args.batch, sampler=DistributedSampler(train), drop_last=True)
    held_out = DataLoader(Subset(test, range(rank, len(test), world)), args.batch)
    net = nn.Sequential(nn.Linear(args.features, 256), nn.ReLU(), nn.Linear(256, 1))
    trainer = Trainer(net, torch.device("cuda", local_rank), args.lr)
    best = 0.0
    for epoch in range(args.epochs):
        trainer.fit_epoch(loader, epoch)
        result = trainer.evaluate(held_out)
        if rank == 0:
            print(epoch, result)
            if result["auc"] > best:
                best = result["auc"]
                torch.save(trainer.model.module.state_dict(), "best.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
