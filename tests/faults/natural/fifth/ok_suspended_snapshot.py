"""Healthy: a helper suspends rank 1 with SIGSTOP for 12 s in the middle of the training and lets it go on.

In the style of snapshot tools (freeze, copy, continue); the helper is a child of the rank.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=120

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SNAPSHOT = """
import os, shutil, signal, sys, tempfile, time
pid = int(sys.argv[1])
folder = tempfile.mkdtemp()
os.kill(pid, signal.SIGSTOP)
try:
    for name in ("status", "maps", "limits"):
        shutil.copyfile(f"/proc/{pid}/{name}", os.path.join(folder, name))
    time.sleep(12)
finally:
    os.kill(pid, signal.SIGCONT)
shutil.rmtree(folder)
"""


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 20)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    helper = None
    for step in range(120):
        x = torch.randn(32, 20, generator=g)
        loss = nn.functional.mse_loss(model(x + 0.2 * torch.randn(32, 20, generator=g)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 1 and step == 40:
            helper = subprocess.Popen([sys.executable, "-c", SNAPSHOT, str(os.getpid())])
        if helper and step == 80:
            helper.wait()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
