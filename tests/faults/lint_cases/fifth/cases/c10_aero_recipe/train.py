import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from loop import run_epoch
from metrics import MetricCalculator


class PointNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, width))
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 4))

    def forward(self, points):
        h = self.local(points)
        pooled = h.amax(dim=1, keepdim=True).expand_as(h)
        return self.out(torch.cat([h, pooled], dim=-1))


def make_loader(path, batch_size, shuffle):
    data = TensorDataset(*torch.load(path))
    sampler = DistributedSampler(data, shuffle=shuffle)
    return DataLoader(data, batch_size, sampler=sampler)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    model = DistributedDataParallel(PointNet().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    train_loader = make_loader(args.train, args.batch_size, True)
    val_loader = make_loader(args.val, args.batch_size, False)
    metrics = MetricCalculator(device)
    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        train_loss, train_metrics = run_epoch(model, train_loader, metrics, device, optimizer)
        val_loss, val_metrics = run_epoch(model, val_loader, metrics, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} train {train_loss:.5f} val {val_loss:.5f}")
            print("   ".join(f"{k} {train_metrics[k]:.4f}/{val_metrics[k]:.4f}" for k in val_metrics))
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "pointnet.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
