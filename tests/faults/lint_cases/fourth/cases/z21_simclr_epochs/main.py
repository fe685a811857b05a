import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import build_loader


class SimCLR(nn.Module):
    def __init__(self, projection=64):
        super().__init__()
        self.encoder = torchvision.models.resnet18()
        features = self.encoder.fc.in_features
        self.encoder.fc = nn.Identity()
        self.projector = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, projection))

    def forward(self, a, b):
        return self.projector(self.encoder(a)), self.projector(self.encoder(b))


def nt_xent(za, zb, temperature=0.5):
    z = nn.functional.normalize(torch.cat([za, zb]), dim=-1)
    logits = z @ z.T / temperature
    logits.fill_diagonal_(float("-inf"))
    n = len(za)
    targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return nn.functional.cross_entropy(logits, targets)


def train(args, loader, model, optimizer):
    losses = 0.0
    for (a, b), _ in loader:
        optimizer.zero_grad()
        loss = nt_xent(*model(a.cuda(non_blocking=True), b.cuda(non_blocking=True)))
        loss.backward()
        optimizer.step()
        losses += loss.item()
    return losses / len(loader)


def main(gpu, args):
    args.rank = args.nr * args.gpus + gpu
    dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
    torch.cuda.set_device(gpu)
    torch.manual_seed(args.seed + args.rank)
    loader = build_loader(args)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(SimCLR()).cuda()
    model = DDP(model, device_ids=[gpu])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        loss = train(args, loader, model, optimizer)
        scheduler.step()
        if args.rank == 0:
            print(f"Epoch [{epoch}/{args.epochs}]\t loss {loss:.4f}")
            if epoch % 10 == 0:
                torch.save(model.module.state_dict(), f"checkpoint_{epoch}.tar")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset_dir", default="./datasets")
    parser.add_argument("--image_size", type=int, default=96)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--nr", type=int, default=0)
    args = parser.parse_args()
    args.world_size = args.nodes * args.gpus
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "8000")
    mp.spawn(main, args=(args,), nprocs=args.gpus, join=True)
