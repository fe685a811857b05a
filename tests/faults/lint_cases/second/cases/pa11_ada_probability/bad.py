"""GAN with adaptive discriminator augmentation (ADA)."""
import math
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class AugmentPipe(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.register_buffer("p", torch.tensor(float(p)))

    def forward(self, x):
        flip = torch.rand(len(x), 1, 1, 1) < self.p * 0.5
        x = torch.where(flip, x.flip(-1), x)
        noisy = torch.rand(len(x), 1, 1, 1) < self.p
        return torch.where(noisy, 0.1 * x + torch.randn_like(x), x)


class SignCollector:
    """Accumulates sign(D(real)) between two updates of p."""

    def __init__(self):
        self.total = torch.zeros(2)

    def report(self, logits):
        self.total += torch.stack([logits.detach().sign().sum(), torch.tensor(float(logits.numel()))])

    def pop(self):
        total, self.total = self.total, torch.zeros(2)
        return (total[0] / total[1].clamp(min=1)).item()


class AdaController:
    def __init__(self, pipe, target=0.6, interval=4, kimg=2.0):
        self.pipe, self.target, self.interval, self.kimg = pipe, target, interval, kimg
        self.signs = SignCollector()

    def heuristic(self):
        return self.signs.pop()  # RELATED: source

    def maybe_update(self, batch_idx, images_per_step) -> Optional[float]:
        if (batch_idx + 1) % self.interval:
            return None
        r_t = self.heuristic()
        adjust = math.copysign(1.0, r_t - self.target) * images_per_step * self.interval / (self.kimg * 1000)
        self.pipe.p.copy_((self.pipe.p + adjust).clamp(0, 1))  # EXPECT: rank-local-state
        return r_t


def build_generator(z_dim, w=16):
    return nn.Sequential(
        nn.Linear(z_dim, w * 16), nn.ReLU(), nn.Unflatten(1, (w, 4, 4)),
        nn.ConvTranspose2d(w, w, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh(),
    )


def build_discriminator(w=16):
    return nn.Sequential(
        nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(w, 2 * w, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(2 * w * 16, 1), nn.Flatten(0),
    )


class Phase:
    def __init__(self, net, lr):
        self.net = DDP(net)
        self.opt = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.0, 0.99))

    def apply(self, loss):
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()


def training_loop(total_steps=160, batch=16, z_dim=16):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    G, D = Phase(build_generator(z_dim), 2e-4), Phase(build_discriminator(), 1e-3)
    pipe = AugmentPipe()
    ada = AdaController(pipe)
    torch.manual_seed(1000 + rank)
    for step in range(total_steps):
        real = torch.rand(batch, 3, 16, 16) * 2 - 1
        with torch.no_grad():
            fake = G.net(torch.randn(batch, z_dim))
        logits = D.net(pipe(torch.cat([real, fake])))
        real_logits, fake_logits = logits.split(batch)
        ada.signs.report(real_logits)
        D.apply(F.softplus(-real_logits).mean() + F.softplus(fake_logits).mean())
        G.apply(F.softplus(-D.net.module(pipe(G.net(torch.randn(batch, z_dim))))).mean())
        r_t = ada.maybe_update(step, batch * world)
        if r_t is not None and step % 20 == 19:
            print(f"rank {rank} step {step} r_t {r_t:.3f} p {pipe.p.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    training_loop()
    dist.barrier()
    dist.destroy_process_group()
