"""DCGAN-ish trainer; a sub-pool of ranks keeps running statistics of the samples."""
import argparse
import datetime
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def build_group(ranks, timeout_s=600):
    return dist.new_group(sorted(ranks), timeout=datetime.timedelta(seconds=timeout_s), backend="gloo")  # RELATED: hidden-collective


class MetricPool:
    """First `share` of the ranks; they pool channel statistics of generated images."""

    def __init__(self, share=0.5):
        world = dist.get_world_size()
        self.ranks = list(range(max(1, math.floor(world * share))))
        self.group = None
        self.samples = 0
        self.mean = torch.zeros(3)
        if self.is_member:  # RELATED: guard
            self.group = build_group(self.ranks)  # EXPECT: group-create-divergence

    @property
    def is_member(self):
        return dist.get_rank() in self.ranks

    @torch.no_grad()
    def observe(self, images):
        if not self.is_member:
            return
        stats = torch.cat([images.sum((0, 2, 3)), torch.tensor([float(images.numel() / 3)])])
        dist.all_reduce(stats, group=self.group)
        batch_mean = stats[:3] / stats[3]
        self.samples += 1
        self.mean += (batch_mean - self.mean) / self.samples


class Generator(nn.Module):
    def __init__(self, z=16, w=16):
        super().__init__()
        self.fc = nn.Linear(z, w * 16)
        self.body = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(w, w, 3, 1, 1), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(w, 3, 3, 1, 1), nn.Tanh(),
        )
        self.w = w

    def forward(self, z):
        return self.body(self.fc(z).view(-1, self.w, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(w, w, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(w * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class GanTrainer:
    def __init__(self, args):
        self.args = args
        self.G, self.D = DDP(Generator(args.z)), DDP(Discriminator())
        self.pool = MetricPool(args.metric_share)
        self.host_group = dist.new_group(backend="gloo")
        self.og = torch.optim.Adam(self.G.parameters(), 2e-4, betas=(0.5, 0.999))
        self.od = torch.optim.Adam(self.D.parameters(), 2e-4, betas=(0.5, 0.999))

    def latent(self):
        return torch.randn(self.args.batch, self.args.z)

    def d_step(self, real):
        with torch.no_grad():
            fake = self.G(self.latent())
        logits = self.D(torch.cat([real, fake]))
        loss = F.softplus(-logits[: len(real)]).mean() + F.softplus(logits[len(real):]).mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return fake

    def g_step(self):
        loss = F.softplus(-self.D.module(self.G(self.latent()))).mean()
        self.og.zero_grad()
        loss.backward()
        self.og.step()

    def run(self):
        for step in range(self.args.steps):
            fake = self.d_step(torch.rand(self.args.batch, 3, 16, 16) * 2 - 1)
            self.g_step()
            self.pool.observe(fake)
        dist.barrier(group=self.host_group)
        if dist.get_rank() == 0:
            print("running mean of samples", self.pool.mean.tolist(), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--z", type=int, default=16)
    p.add_argument("--metric-share", type=float, default=0.5)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    GanTrainer(args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
