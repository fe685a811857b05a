"""When the image viewer is closed, rank 0 signals its whole process group with SIGTERM and so ends itself.

Modelled on clean-up code with os.killpg(os.getpgrp()) that was written for an interactive shell.
"""
# case: processes=3 ending=crash causes=rank-killed,signal-sigterm-preempted,peer-lost ranks=0 framework=ddp

import os
import signal
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VIEWER = "import time\nwhile True: time.sleep(1)\n"


class SampleViewer:
    """Shows samples in a process of its own."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", VIEWER])

    def close(self):
        os.killpg(os.getpgid(self.process.pid), signal.SIGTERM)  # GUILTY
        self.process.wait()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Tanh())

    def forward(self, z):
        return self.net(z)


def train_epoch(generator, critic, opt_g, opt_c, g):
    for _ in range(20):
        real = torch.randn(16, 64, generator=g).tanh()
        fake = generator(torch.randn(16, 16, generator=g))
        opt_c.zero_grad()
        (critic(torch.cat([fake.detach(), real])) * torch.cat([torch.ones(16, 1), -torch.ones(16, 1)])).mean().backward()
        opt_c.step()
        opt_g.zero_grad()
        loss = ((fake - real.mean(0)) ** 2).mean()
        loss.backward()
        opt_g.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator = DDP(Generator())
    critic = DDP(nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for epoch in range(6):
        viewer = SampleViewer() if rank == 0 and epoch % 3 == 2 else None
        loss = train_epoch(generator, critic, opt_g, opt_c, g)
        if viewer:
            viewer.close()  # ALSO
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
