"""Fine-tune a reward head; preemptible, so it checkpoints often."""
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ckpt import CheckpointManager, Progress


def batches(start, stop, rank):
    for step in range(start, stop):
        g = torch.Generator().manual_seed(step * 17 + rank)
        chosen, rejected = torch.randn(2, 8, 12, generator=g)
        yield step, chosen + 0.3, rejected


class RewardTrainer:
    def __init__(self, root, steps=30, interval=10):
        self.rank = dist.get_rank()
        self.steps = steps
        net = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 1))
        self.model = DDP(net)
        self.optim = torch.optim.AdamW(net.parameters(), lr=2e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.optim, steps)
        self.progress = Progress()
        self.ckpt = CheckpointManager(
            root, interval, model=net, optim=self.optim, sched=self.sched, progress=self.progress
        )

    def step(self, chosen, rejected):
        margin = self.model(torch.cat([chosen, rejected])).view(2, -1)
        loss = -nn.functional.logsigmoid(margin[0] - margin[1]).mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.sched.step()
        return loss.detach()

    def train(self):
        resumed = self.ckpt.restore()
        if self.rank == 0:
            print("resumed at" if resumed else "fresh start at", self.progress.step)
        window = torch.zeros(())
        for step, chosen, rejected in batches(self.progress.step, self.steps, self.rank):
            window += self.step(chosen, rejected)
            self.progress.step = step + 1
            self.progress.samples += len(chosen) * dist.get_world_size()
            if self.ckpt.due(step + 1):
                dist.all_reduce(window)
                mean = window.item() / (self.ckpt.interval * dist.get_world_size())
                self.progress.best = min(self.progress.best, mean)
                self.ckpt.save()
                if self.rank == 0:
                    print(f"step {step + 1} loss {mean:.4f} best {self.progress.best:.4f}")
                window.zero_()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(11)
    root = Path(os.environ.get("CASE_TMP", tempfile.gettempdir())) / "reward-run"
    RewardTrainer(root).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
