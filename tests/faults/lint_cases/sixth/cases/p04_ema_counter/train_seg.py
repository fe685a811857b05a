import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ema import ModelEMA


def build_model(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, num_classes, 1),
    )


def synthetic(n, num_classes, seed):
    gen = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 64, 64, generator=gen)
    return TensorDataset(images, torch.randint(0, num_classes, (n, 64, 64), generator=gen))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        self.net = nn.SyncBatchNorm.convert_sync_batchnorm(build_model(args.num_classes)).to(self.device)
        self.ema = ModelEMA(self.net, args.ema_decay, args.ema_warmup_steps).to(self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.start_epoch = 0
        self.last_ckpt = os.path.join(args.out, "last.ckpt")
        if args.resume_interrupted:
            self.resume()
        self.model = DDP(self.net, device_ids=[self.device.index])
        train_set = synthetic(2048, args.num_classes, 0)
        self.sampler = DistributedSampler(train_set, shuffle=True)
        self.train_loader = DataLoader(train_set, args.batch_size, sampler=self.sampler, drop_last=True)
        val_set = synthetic(256, args.num_classes, 1)
        self.val_loader = DataLoader(val_set, args.batch_size, sampler=DistributedSampler(val_set, shuffle=False))

    def resume(self):
        ckpt = torch.load(self.last_ckpt, map_location="cpu")
        self.net.load_state_dict(ckpt["model"])
        self.ema.load_state_dict(ckpt["ema"])
        self.optimizer.load_state_dict(ckpt["optimizer"])
        self.start_epoch = ckpt["epoch"] + 1

    def save(self, epoch):
        if dist.get_rank() == 0:
            os.makedirs(self.args.out, exist_ok=True)
            state = {
                "model": self.net.state_dict(),
                "ema": self.ema.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, self.last_ckpt + ".tmp")
            os.replace(self.last_ckpt + ".tmp", self.last_ckpt)
        dist.barrier()

    @torch.no_grad()
    def validate(self):
        stats = torch.zeros(2, device=self.device)
        for images, masks in self.val_loader:
            pred = self.ema(images.to(self.device)).argmax(1)
            stats[0] += (pred == masks.to(self.device)).sum()
            stats[1] += masks.numel()
        dist.all_reduce(stats)
        return (stats[0] / stats[1]).item()

    def fit(self):
        for epoch in range(self.start_epoch, self.args.epochs):
            self.sampler.set_epoch(epoch)
            self.model.train()
            for images, masks in self.train_loader:
                loss = F.cross_entropy(self.model(images.to(self.device)), masks.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.ema.update(self.net)
            accuracy = self.validate()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: val pixel accuracy {accuracy:.4f}")
            self.save(epoch)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out/seg")
    parser.add_argument("--num-classes", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema-decay", type=float, default=0.9998)
    parser.add_argument("--ema-warmup-steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume-interrupted", action="store_true")
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(cli.seed)
    Trainer(cli).fit()
    dist.destroy_process_group()
