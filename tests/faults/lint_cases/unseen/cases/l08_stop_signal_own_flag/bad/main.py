"""Text-to-speech codec pre-training loop that survives preemption."""
import argparse
import json
import logging
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from preempt import Drill, StopWatcher

logger = logging.getLogger("codec")


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--run-dir", type=Path, default=Path(os.environ.get("CASE_TMP", "codec-run")))
    p.add_argument("--max-steps", type=int, default=12)
    p.add_argument("--ckpt-freq", type=int, default=50)
    p.add_argument("--log-freq", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


class Tones(Dataset):
    def __init__(self, n=256, length=64):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        t = torch.arange(self.length) / self.length
        return torch.sin(2 * torch.pi * (1 + i % 7) * t)


class Codec(torch.nn.Module):
    def __init__(self, length=64, bottleneck=8):
        super().__init__()
        self.enc = torch.nn.Linear(length, bottleneck)
        self.dec = torch.nn.Linear(bottleneck, length)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.model = DDP(Codec())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        data = Tones()
        self.sampler = DistributedSampler(data, shuffle=True)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, drop_last=True)
        self.step = 0
        self.started = time.time()
        self.drill = Drill(self.rank)

    @property
    def is_writer(self):
        return self.rank == 0

    def batches(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def save(self, reason):
        if self.is_writer:
            self.args.run_dir.mkdir(parents=True, exist_ok=True)
            payload = {"model": self.model.module.state_dict(), "opt": self.opt.state_dict(), "step": self.step}
            target = self.args.run_dir / f"checkpoint_{self.step:08d}.pt"
            torch.save(payload, target.with_suffix(".tmp"))
            target.with_suffix(".tmp").replace(target)
            logger.info("saved %s (%s)", target.name, reason)

    def train_step(self, batch):
        loss = (self.model(batch) - batch).pow(2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return loss.detach()

    def report(self, loss):
        dist.all_reduce(loss)
        if self.is_writer:
            rate = self.step / (time.time() - self.started)
            logger.info("step %d loss %.4f (%.1f it/s)", self.step, loss.item() / dist.get_world_size(), rate)

    def should_leave(self, watcher):
        return watcher.pending

    def fit(self, watcher):
        for batch in self.batches():
            loss = self.train_step(batch)  # RELATED: hidden-collective
            self.step += 1
            self.drill.tick(self.step)
            if self.step % self.args.log_freq == 0:
                self.report(loss)
            if self.step % self.args.ckpt_freq == 0:
                self.save("periodic")
            if self.should_leave(watcher):  # RELATED: guard
                logger.warning("rank %d got %s, leaving at step %d", self.rank, watcher.received, self.step)
                self.save("preempted")
                break  # EXPECT: local-early-exit
            if self.step >= self.args.max_steps:
                self.save("final")
                break
        return self.summary()

    def summary(self):
        norm = sum(p.detach().pow(2).sum() for p in self.model.parameters()).reshape(1)
        dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        if self.is_writer:
            (self.args.run_dir / "summary.json").write_text(json.dumps({"step": self.step, "norm": norm.item()}))
        return self.step


def main():
    logging.basicConfig(level=logging.INFO)
    args = get_args()
    dist.init_process_group("gloo")
    with StopWatcher() as watcher:
        Trainer(args).fit(watcher)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
