"""WGAN-GP on a 2-D mixture, two DDP networks, smoothed meters."""
import functools
from collections import defaultdict, deque

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def rank_zero_only(fn):
    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None

    return wrapped


class SmoothedValue:
    def __init__(self, window=20):
        self.window = deque(maxlen=window)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.window.append(value)
        self.total += value * n
        self.count += n

    @property
    def median(self):
        return torch.tensor(list(self.window)).median().item()

    @property
    def global_avg(self):
        t = torch.tensor([self.total, float(self.count)], dtype=torch.float64)
        dist.all_reduce(t)  # RELATED: hidden-collective
        return (t[0] / t[1].clamp(min=1)).item()

    def format(self):
        return f"{self.median:.4f} ({self.global_avg:.4f})"


class GanLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **scalars):
        for k, v in scalars.items():
            self.meters[k].update(float(v))

    def lines(self):
        return {name: meter.format() for name, meter in sorted(self.meters.items())}

    @rank_zero_only  # RELATED: guard
    def report(self, step):
        parts = self.lines()  # EXPECT: rank-guarded-collective
        print(f"[{step:05d}] " + "  ".join(f"{k} {v}" for k, v in parts.items()), flush=True)


def mlp(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def real_batch(n, gen):
    centers = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    idx = torch.randint(0, 4, (n,), generator=gen)
    return centers[idx] + 0.1 * torch.randn(n, 2, generator=gen)


def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1)
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    grad = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)[0]
    return (grad.norm(dim=1) - 1).pow(2).mean()


class WganTrainer:
    def __init__(self, z_dim=8, critic_steps=3):
        self.G, self.D = DDP(mlp(z_dim, 2)), DDP(mlp(2, 1))
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=1e-3, betas=(0.0, 0.9))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=1e-3, betas=(0.0, 0.9))
        self.z_dim, self.critic_steps = z_dim, critic_steps
        self.logger = GanLogger()

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.G(torch.randn(real.size(0), self.z_dim))
        scores = self.D(torch.cat([real, fake]))
        wdist = scores[: len(real)].mean() - scores[len(real):].mean()
        loss = -wdist + 10.0 * gradient_penalty(self.D.module, real, fake)
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return wdist.item()

    def generator_step(self, n):
        loss = -self.D.module(self.G(torch.randn(n, self.z_dim))).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        return loss.item()

    def fit(self, steps, gen, log_every=10):
        for step in range(1, steps + 1):
            for _ in range(self.critic_steps):
                w = self.critic_step(real_batch(64, gen))
            self.logger.update(wdist=w, g_loss=self.generator_step(64))
            if step % log_every == 0:
                self.logger.report(step)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1 + dist.get_rank())
    WganTrainer().fit(40, torch.Generator().manual_seed(10 + dist.get_rank()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
