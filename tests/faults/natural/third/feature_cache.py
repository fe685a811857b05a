"""A memory watchdog in the script kills the process of the rank whose feature cache grows without bound.

In the style of a fine-tuning script with a frozen backbone, whose features are cached.
"""
# case: processes=3 ending=crash causes=rank-killed ranks=1 framework=ddp

import argparse
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WATCHDOG = """
import os, signal, sys, time
pid, growth = int(sys.argv[1]), int(sys.argv[2]) << 20
def resident():
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
base = resident()
while os.path.exists(f"/proc/{pid}") and os.getppid() == pid:
    if resident() - base > growth:
        os.kill(pid, signal.SIGKILL)  # better one job than the whole host
    time.sleep(0.05)
"""


def guard_memory(megabytes):
    return subprocess.Popen([sys.executable, "-S", "-c", WATCHDOG, str(os.getpid()), str(megabytes)])


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(48, 512), nn.ReLU(), nn.Linear(512, 8192), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class CachedFeatures:
    """Features by image; an image that comes again is not computed again."""

    def __init__(self, backbone, unique):
        self.backbone, self.unique, self.cache = backbone.eval(), unique, {}

    @torch.no_grad()
    def __call__(self, names, images):
        key = tuple(n % self.unique if self.unique else n for n in names)
        if key not in self.cache:
            self.cache[key] = self.backbone(images)
        return self.cache[key]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--memory-growth-mb", type=int, default=250)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    # the images of rank 1 are crops with ever new names, those of the others come again after 512
    features = CachedFeatures(Backbone(), unique=None if rank == 1 else 512)
    head = DDP(nn.Linear(8192, 4))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    guard = guard_memory(args.memory_growth_mb)
    for step in range(args.steps):
        names = range(step * args.batch_size, (step + 1) * args.batch_size)
        images = torch.randn(args.batch_size, 48)
        loss = nn.functional.cross_entropy(head(features(names, images)), images[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    guard.kill()
    guard.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
