import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

RANK = int(os.environ.get("RANK", -1))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", -1))


class EarlyStopping:
    def __init__(self, patience=30):
        self.best_fitness, self.best_epoch = 0.0, 0
        self.patience = patience or float("inf")

    def __call__(self, epoch, fitness):
        if fitness >= self.best_fitness:
            self.best_epoch, self.best_fitness = epoch, fitness
        stop = epoch - self.best_epoch >= self.patience
        if stop:
            print(f"Stopping early: no improvement in the last {self.patience} epochs")
        return stop


@torch.no_grad()
def validate(net, loader, device):
    net.eval()
    hits = total = 0
    for x, y in loader:
        hits += (net(x.to(device)).argmax(1) == y.to(device)).sum().item()
        total += len(y)
    net.train()
    return hits / total


def train(opt):
    device = torch.device("cuda", LOCAL_RANK)
    torch.manual_seed(0)
    train_set = TensorDataset(torch.randn(20000, 32), torch.randint(0, 5, (20000,)))
    val_set = TensorDataset(torch.randn(1000, 32), torch.randint(0, 5, (1000,)))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, opt.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, 256) if RANK in {-1, 0} else None
    net = nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 5)).to(device)
    model = DDP(net, device_ids=[LOCAL_RANK])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937)
    stopper, stop = EarlyStopping(opt.patience), False
    for epoch in range(opt.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if RANK in {-1, 0}:
            fitness = validate(model.module, val_loader, device)
            stop = stopper(epoch=epoch, fitness=fitness)
            torch.save(model.module.state_dict(), opt.last)
        if RANK != -1:
            broadcast_list = [stop if RANK == 0 else None]
            dist.broadcast_object_list(broadcast_list, 0)
            if RANK != 0:
                stop = broadcast_list[0]
        if stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--patience", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--last", default="last.pt")
    opt = parser.parse_args()
    torch.cuda.set_device(LOCAL_RANK)
    dist.init_process_group("nccl")
    train(opt)
