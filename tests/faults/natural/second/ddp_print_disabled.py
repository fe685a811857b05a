"""Printing is switched off on all ranks but 0, so rank 2 exits with status 1 and its error message goes nowhere.

Modelled on zhijian-liu/torchpack#14, Megvii-BaseDetection/YOLOX#840 and mosaicml/composer#477 (errors of rank > 0 are not shown).
"""
# case: processes=4 ending=crash causes=exit-nonzero,python-exception-on-one-rank ranks=2 framework=ddp

import argparse
import builtins
import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def setup_for_distributed(is_master):
    """Keep the log readable: only the master prints."""
    builtin_print = builtins.print

    def print(*args, force=False, **kwargs):
        if is_master or force:
            builtin_print(*args, **kwargs)

    builtins.print = print


class Boxes(Dataset):
    """Detection samples; annotations come from several tools."""

    def __init__(self, n=240):
        g = torch.Generator().manual_seed(1)
        self.features = torch.randn(n, 40, generator=g)
        boxes = torch.rand(n, 4, generator=g)
        self.annotations = [{"bbox": b.tolist()} for b in boxes]
        self.annotations[150] = {"box": boxes[150].tolist()}

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i], torch.tensor(self.annotations[i]["bbox"])  # GUILTY


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.net(x).sigmoid()


def train_one_epoch(model, loader, optimizer, epoch):
    for i, (x, boxes) in enumerate(loader):  # ALSO
        loss = nn.functional.l1_loss(model(x), boxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [{epoch}] [{i}/{len(loader)}] loss: {loss.item():.4f}", flush=True)


def main(args):
    dist.init_process_group("gloo")
    setup_for_distributed(dist.get_rank() == 0)
    torch.manual_seed(0)
    model = DDP(BoxHead())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Boxes()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_one_epoch(model, loader, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser("Box head training")
    parser.add_argument("--lr", default=1e-3, type=float)
    parser.add_argument("--batch-size", default=4, type=int)
    parser.add_argument("--epochs", default=3, type=int)
    try:
        main(parser.parse_args())
    except Exception:
        print("Training failed:", traceback.format_exc(), flush=True)
        sys.exit(1)  # ALSO
