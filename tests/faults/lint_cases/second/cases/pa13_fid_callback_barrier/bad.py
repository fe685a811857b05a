"""GAN training with an EMA generator and a periodic FID callback."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def make_generator(z=32, w=32):
    return nn.Sequential(
        nn.Linear(z, w * 16), nn.Unflatten(1, (w, 4, 4)),
        nn.Upsample(scale_factor=2), nn.Conv2d(w, w, 3, 1, 1), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(w, 3, 3, 1, 1), nn.Tanh(),
    )


def make_critic(w=32):
    return nn.Sequential(
        nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(w, w, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(w * 16, 1),
    )


class FeatureNet(nn.Module):
    """Stand-in for the Inception pool3 features."""

    def __init__(self, dim=64):
        super().__init__()
        torch.manual_seed(1234)
        self.net = nn.Sequential(nn.Conv2d(3, dim, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    @torch.no_grad()
    def forward(self, x):
        return self.net(x)


def frechet(a, b):
    ma, mb = a.mean(0), b.mean(0)
    ca, cb = torch.cov(a.t()), torch.cov(b.t())
    eig = torch.linalg.eigvals(ca @ cb).real.clamp(min=0).sqrt().sum()
    return ((ma - mb).pow(2).sum() + ca.trace() + cb.trace() - 2 * eig).item()


class FIDCallback:
    def __init__(self, reference, num_samples, batch, every):
        self.features = FeatureNet()
        self.reference = self.features(reference)
        self.num_samples, self.batch, self.every = num_samples, batch, every

    @torch.no_grad()
    def sample_features(self, generator, n):
        out = []
        for lo in range(0, n, self.batch):
            z = torch.randn(min(self.batch, n - lo), generator[0].in_features)
            out.append(self.features(generator(z)))
        return torch.cat(out)

    def compute(self, generator):
        feats = self.sample_features(generator, self.num_samples)
        return frechet(feats, self.reference)

    def on_epoch_end(self, trainer):
        if (trainer.epoch + 1) % self.every:
            return
        if trainer.rank == 0:  # RELATED: guard
            fid = self.compute(trainer.ema)  # EXPECT: long-rank0-work
            print(f"epoch {trainer.epoch} fid {self.num_samples // 1000}k: {fid:.3f}", flush=True)


class Trainer:
    def __init__(self, args, callbacks):
        self.args, self.callbacks, self.rank = args, callbacks, dist.get_rank()
        self.G, self.D = DDP(make_generator()), DDP(make_critic())
        self.ema = copy.deepcopy(self.G.module).eval().requires_grad_(False)
        self.og = torch.optim.Adam(self.G.parameters(), 1e-4, betas=(0.0, 0.99))
        self.od = torch.optim.Adam(self.D.parameters(), 1e-4, betas=(0.0, 0.99))

    def step(self, real):
        fake = self.G(torch.randn(len(real), 32))
        logits = self.D(torch.cat([real, fake.detach()]))
        d_loss = F.relu(1 - logits[: len(real)]).mean() + F.relu(1 + logits[len(real):]).mean()
        self.od.zero_grad()
        d_loss.backward()
        self.od.step()
        g_loss = -self.D.module(fake).mean()
        self.og.zero_grad()
        g_loss.backward()
        self.og.step()
        for e, p in zip(self.ema.parameters(), self.G.module.parameters()):
            e.lerp_(p.detach(), 0.01)

    def fit(self):
        for self.epoch in range(self.args.epochs):
            for _ in range(self.args.steps):
                self.step(torch.rand(self.args.batch, 3, 16, 16) * 2 - 1)
            for cb in self.callbacks:
                cb.on_epoch_end(self)
            dist.barrier()  # RELATED: hidden-collective


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--fid-samples", type=int, default=50_000)
    args = p.parse_args()
    dist.init_process_group("gloo")
    fid = FIDCallback(torch.rand(2048, 3, 16, 16) * 2 - 1, args.fid_samples, 500, every=1)
    torch.manual_seed(17 + dist.get_rank())
    Trainer(args, [fid]).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
