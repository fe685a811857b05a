"""Rank 0 joins the thread that removes old checkpoints while it holds the lock that the thread needs.

In the style of a DDP script with a checkpoint manager that keeps the last three checkpoints.
"""
# case: processes=3 ending=hang causes=rank-missing-collective ranks=0 framework=ddp

import argparse
import os
import tempfile
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class CheckpointManager:
    """Writes checkpoints and removes the oldest ones in the background."""

    def __init__(self, folder, keep=3):
        self.folder, self.keep = folder, keep
        self.lock = threading.Lock()
        self.kept, self.cleaner = [], None

    def save(self, state, step, last=False):
        path = os.path.join(self.folder, f"step-{step:06d}.pt")
        torch.save(state, path)
        with self.lock:
            self.kept.append(path)
            if len(self.kept) > self.keep:
                self.clean(wait=last)  # ALSO

    def clean(self, wait):
        self.cleaner = threading.Thread(target=self.remove_oldest, daemon=True)
        self.cleaner.start()
        if wait:  # leave nothing behind when the job ends
            self.cleaner.join()  # GUILTY

    def remove_oldest(self):
        with self.lock:  # ALSO
            while len(self.kept) > self.keep:
                os.remove(self.kept.pop(0))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, x):
        return self.net(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(MLP())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    manager = CheckpointManager(tempfile.mkdtemp(prefix="rotating-")) if rank == 0 else None
    for step in range(1, args.steps + 1):
        x = torch.randn(32, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.save_every == 0:
            if rank == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                manager.save(state, step, last=step == args.steps)  # ALSO
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
