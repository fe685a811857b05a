import argparse
import json
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from jets import retrieve_dataloaders


class Tagger(nn.Module):
    def __init__(self, hidden, layers):
        super().__init__()
        dims = [4] + [hidden] * layers
        self.phi = nn.Sequential(*[m for a, b in zip(dims, dims[1:]) for m in (nn.Linear(a, b), nn.ReLU())])
        self.rho = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 2))

    def forward(self, p4, mask):
        hidden = self.phi(p4) * mask.unsqueeze(-1)
        return self.rho(hidden.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def run_epoch(model, loader, device, optimizer=None):
    train = optimizer is not None
    model.train(train)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    net = model if train else model.module
    with torch.set_grad_enabled(train):
        for p4, mask, label in loader:
            p4, mask, label = p4.float().to(device), mask.float().to(device), label.long().to(device)
            out = net(p4, mask)
            loss = criterion(out, label)
            if train:
                optimizer.zero_grad()
                (loss / len(label)).backward()
                optimizer.step()
            totals += torch.stack([loss.detach(), (out.argmax(1) == label).sum().float(), loss.new_tensor(len(label))]).double()
    dist.all_reduce(totals)
    return (totals[0] / totals[2]).item(), (totals[1] / totals[2]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("datafile")
    parser.add_argument("--exp-name", default="tagger")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--num-data", type=int, default=-1)
    parser.add_argument("--hidden", type=int, default=72)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=35)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=99)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", local_rank)

    np.random.seed(args.seed + rank)
    torch.manual_seed(args.seed + rank)
    loaders = retrieve_dataloaders(args.datafile, args.batch_size, rank, world_size, args.num_data)
    model = DistributedDataParallel(Tagger(args.hidden, args.layers).to(device), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    history = {"train": [], "valid": [], "best": 0.0}
    for epoch in range(args.epochs):
        history["train"].append(run_epoch(model, loaders["train"], device, optimizer))
        history["valid"].append(run_epoch(model, loaders["valid"], device))
        scheduler.step()
        if rank == 0 and history["valid"][-1][1] > history["best"]:
            history["best"] = history["valid"][-1][1]
            torch.save(model.module.state_dict(), f"{args.exp_name}-best.pt")
    history["test"] = run_epoch(model, loaders["test"], device)
    if rank == 0:
        with open(f"{args.exp_name}.json", "w") as handle:
            json.dump(history, handle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
