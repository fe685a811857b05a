import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from ema_tracker import EMATracker


class OceanUNet(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU())
        self.mid = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU())
        self.decode = nn.Conv2d(width, channels, 1)

    def forward(self, state):
        h = self.encode(state)
        return state + self.decode(h + self.mid(h))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.device)
        if self.distributed:
            dist.init_process_group("nccl")
        torch.manual_seed(cfg.seed)

        self.model = OceanUNet(cfg.channels, cfg.width).to(self.device)
        self.ema = EMATracker(self.model, cfg.ema_decay, cfg.faster_decay_at_start)
        if self.distributed:
            self.model = nn.parallel.DistributedDataParallel(
                nn.SyncBatchNorm.convert_sync_batchnorm(self.model), device_ids=[self.local_rank]
            )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)

    @property
    def rank(self):
        return dist.get_rank() if self.distributed else 0

    def batches(self, count, seed):
        gen = torch.Generator(device=self.device).manual_seed(seed * 1000 + self.rank)
        for _ in range(count):
            shape = (self.cfg.batch_size, self.cfg.channels, 90, 180)
            yield torch.randn(shape, device=self.device, generator=gen)

    def train_one_epoch(self, epoch):
        self.model.train()
        for state in self.batches(self.cfg.steps_per_epoch, epoch):
            loss = F.mse_loss(self.model(state), state.roll(1, dims=-1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.ema(self.model)

    @torch.no_grad()
    def validate_one_epoch(self):
        self.model.eval()
        total = torch.zeros((), device=self.device)
        with self.ema.applied_params(self.model):
            for state in self.batches(self.cfg.val_steps, 10_000):
                total += F.mse_loss(self.model(state), state.roll(1, dims=-1))
        if self.distributed:
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
        return total.item() / self.cfg.val_steps

    def run(self):
        for epoch in range(self.cfg.epochs):
            self.train_one_epoch(epoch)
            val_loss = self.validate_one_epoch()
            if self.rank == 0:
                print(f"epoch {epoch} val loss {val_loss:.5f}")
                torch.save({"ema": self.ema.state_dict(), "epoch": epoch}, self.cfg.checkpoint)
        if self.distributed:
            dist.barrier()
            dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps-per-epoch", type=int, default=200)
    parser.add_argument("--val-steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--ema-decay", type=float, default=0.9995)
    parser.add_argument("--no-faster-decay", dest="faster_decay_at_start", action="store_false")
    parser.add_argument("--checkpoint", default="ema_ckpt.pt")
    parser.add_argument("--seed", type=int, default=0)
    Trainer(parser.parse_args()).run()
