"""Pretrain a small causal language model on packed token blocks."""
import argparse
import os
import random
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class CheckpointConfig:
    directory: str = "runs/tinylm"
    every: int = 8
    keep: int = 2
    written: list = field(default_factory=list)


class PackedBlocks(Dataset):
    def __init__(self, blocks=256, length=32, vocab=97):
        gen = torch.Generator().manual_seed(11)
        self.tokens = torch.randint(0, vocab, (blocks, length + 1), generator=gen)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i, :-1], self.tokens[i, 1:]


class TinyLM(nn.Module):
    def __init__(self, vocab=97, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.mix(self.embed(ids))[0])


class CheckpointManager:
    """Keeps the newest few checkpoints, with what is needed to resume bit for bit."""

    def __init__(self, cfg, model, optimizer):
        self.cfg, self.model, self.optimizer = cfg, model, optimizer
        if self.is_writer:
            os.makedirs(cfg.directory, exist_ok=True)

    @property
    def is_writer(self):
        return dist.get_rank() == 0

    def due(self, step):
        return step > 0 and step % self.cfg.every == 0

    def _rng_snapshot(self):
        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
        }

    def _rng_of_all_workers(self):
        snapshots = [None] * dist.get_world_size()
        dist.all_gather_object(snapshots, self._rng_snapshot())  # RELATED: hidden-collective
        return snapshots

    def _payload(self, step):
        return {
            "step": step,
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self._rng_of_all_workers(),
        }

    def _write(self, step, payload):
        target = os.path.join(self.cfg.directory, f"step{step:07d}.pt")
        torch.save(payload, target + ".part")
        os.replace(target + ".part", target)
        self.cfg.written.append(target)
        while len(self.cfg.written) > self.cfg.keep:
            os.remove(self.cfg.written.pop(0))

    def save(self, step):
        self._write(step, self._payload(step))

    def after_step(self, step):
        if self.due(step) and self.is_writer:  # RELATED: guard
            self.save(step)  # EXPECT: rank-guarded-collective


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(1000 + dist.get_rank())
    data = PackedBlocks()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    model = DDP(TinyLM().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    manager = CheckpointManager(CheckpointConfig(), model, optimizer)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            logits = model(ids.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1), labels.to(device).flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            manager.after_step(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
