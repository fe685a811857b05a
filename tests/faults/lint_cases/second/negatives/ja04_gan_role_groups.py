"""GAN where the ranks are divided into sampling and scoring roles for the evaluation round."""
import enum
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Role(enum.Enum):
    SAMPLER = "sampler"
    SCORER = "scorer"


@dataclass
class RoleLayout:
    world_size: int

    def ranks(self, role):
        half = max(1, self.world_size // 2)
        return list(range(half)) if role is Role.SAMPLER else list(range(half, self.world_size))

    def role_of(self, rank):
        return Role.SAMPLER if rank in self.ranks(Role.SAMPLER) else Role.SCORER


class RoleGroups:
    def __init__(self, layout):
        self.layout = layout
        self.groups = {role: dist.new_group(layout.ranks(role)) for role in Role}
        self.role = layout.role_of(dist.get_rank())

    @property
    def mine(self):
        return self.groups[self.role]

    def average(self, value):
        t = torch.tensor([value, 1.0], dtype=torch.float64)
        dist.all_reduce(t, group=self.mine)
        return (t[0] / t[1]).item()


class RoundEvaluator:
    def __init__(self, groups, z_dim):
        self.groups, self.z_dim = groups, z_dim
        self.handlers = {Role.SAMPLER: self.sample_spread, Role.SCORER: self.score_real}

    def sample_spread(self, G, D):
        with torch.no_grad():
            spread = G(torch.randn(256, self.z_dim)).std(0).mean().item()
        return self.groups.average(spread)

    def score_real(self, G, D):
        with torch.no_grad():
            score = D(real_points(256)).sigmoid().mean().item()
        return self.groups.average(score)

    def run(self, G, D, step):
        if self.groups.role is Role.SAMPLER:
            value = self.handlers[Role.SAMPLER](G, D)
        else:
            value = self.handlers[Role.SCORER](G, D)
        print(f"step {step} rank {dist.get_rank()} {self.groups.role.value}: {value:.4f}", flush=True)


def real_points(n):
    theta = torch.rand(n) * 6.2832
    return torch.stack([theta.cos(), theta.sin()], 1) + 0.05 * torch.randn(n, 2)


def net(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.LeakyReLU(0.2), nn.Linear(64, o))


class Trainer:
    def __init__(self, z_dim=4):
        self.z_dim = z_dim
        self.G, self.D = DDP(net(z_dim, 2)), DDP(net(2, 1))
        self.og = torch.optim.Adam(self.G.parameters(), lr=1e-3)
        self.od = torch.optim.Adam(self.D.parameters(), lr=1e-3)
        self.evaluator = RoundEvaluator(RoleGroups(RoleLayout(dist.get_world_size())), z_dim)

    def step(self, n=64):
        fake = self.G(torch.randn(n, self.z_dim))
        logits = self.D(torch.cat([real_points(n), fake.detach()]))
        d_loss = F.softplus(-logits[:n]).mean() + F.softplus(logits[n:]).mean()
        self.od.zero_grad()
        d_loss.backward()
        self.od.step()
        g_loss = F.softplus(-self.D.module(fake)).mean()
        self.og.zero_grad()
        g_loss.backward()
        self.og.step()

    def fit(self, steps, eval_every):
        for step in range(1, steps + 1):
            self.step()
            if step % eval_every == 0:
                self.evaluator.run(self.G.module, self.D.module, step)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    Trainer().fit(steps=40, eval_every=10)
    dist.destroy_process_group()
