import argparse
import hashlib
import os
import shutil

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from nodes import NodeGroups, hierarchical_mean, run_on_leader


def stage_locally(source, scratch):
    os.makedirs(scratch, exist_ok=True)
    name = hashlib.sha1(source.encode()).hexdigest()[:12] + ".pt"
    target = os.path.join(scratch, name)
    if not os.path.exists(target):
        shutil.copyfile(source, target + ".part")
        os.replace(target + ".part", target)
    return target


class Trainer:
    def __init__(self, args, groups, device):
        self.groups, self.device = groups, device
        torch.manual_seed(args.seed)
        self.model = nn.Sequential(nn.Linear(args.features, 1024), nn.GELU(), nn.Linear(1024, 1)).to(device)
        for tensor in self.model.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)

    def step(self, x, y):
        loss = F.mse_loss(self.model(x.to(self.device)).squeeze(1), y.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        flat = nn.utils.parameters_to_vector([p.grad for p in self.model.parameters()])
        hierarchical_mean(flat, self.groups)
        offset = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        self.optimizer.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--scratch", default="/tmp/train_cache")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    groups = NodeGroups()
    path = run_on_leader(groups, lambda: stage_locally(args.data, args.scratch))
    blob = torch.load(path, map_location="cpu")
    data = TensorDataset(blob["x"], blob["y"])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 256, sampler=sampler, drop_last=True)
    trainer = Trainer(args, groups, torch.device("cuda", torch.cuda.current_device()))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = trainer.step(x, y)
        if dist.get_rank() == 0:
            print(epoch, loss)
            torch.save(trainer.model.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
