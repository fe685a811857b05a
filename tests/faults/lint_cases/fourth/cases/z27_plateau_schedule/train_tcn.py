import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from meters import AverageMeter


class TCN(nn.Module):
    def __init__(self, channels=80, levels=4):
        super().__init__()
        blocks = []
        for level in range(levels):
            source = 160 if level == 0 else channels
            blocks += [nn.Conv1d(source, channels, 3, dilation=2**level, padding=2**level), nn.ReLU()]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


def shots(path):
    signals, targets = torch.load(path)
    return TensorDataset(signals.float(), targets.float())


def train(model, loader, optimizer, device):
    meter = AverageMeter(device)
    model.train()
    for x, y in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), len(x))
    return meter


@torch.no_grad()
def validate(model, loader, device):
    meter = AverageMeter(device)
    model.eval()
    for x, y in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(x.to(device)), y.to(device))
        meter.update(loss.item(), len(x))
    return meter


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default="train.pt")
    parser.add_argument("--valid", default="valid.pt")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    train_set, valid_set = shots(args.train), shots(args.valid)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, 12, sampler=sampler)
    valid_loader = DataLoader(valid_set, 12, sampler=DistributedSampler(valid_set, shuffle=False))
    model = DDP(TCN().to(device), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_meter = train(model, train_loader, optimizer, device)
        valid_meter = validate(model, valid_loader, device)
        total_loss, valid_loss = train_meter.global_average(), valid_meter.global_average()
        scheduler.step(valid_meter.average)
        if dist.get_rank() == 0:
            rate = optimizer.param_groups[0]["lr"]
            print(f"epoch {epoch} train {total_loss:.4f} valid {valid_loss:.4f} lr {rate:.2g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
