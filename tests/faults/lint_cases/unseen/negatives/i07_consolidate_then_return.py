"""Trainer with a sharded optimizer; its state is collected on the master before the master alone writes the file."""
import argparse
import collections
import json
import logging
import os
import re
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger("trainer")


class Trainer:
    def __init__(self, cfg, device):
        self.cfg, self.device = cfg, device
        net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
        self.model = DDP(net, device_ids=[device.index] if device.type == "cuda" else None)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=torch.optim.AdamW, lr=cfg.lr)
        self.num_updates = 0

    @property
    def rank(self):
        return dist.get_rank()

    @property
    def should_save_checkpoint_on_current_rank(self) -> bool:
        return self.rank == 0

    def train_step(self, x, y):
        self.model.train()
        loss = (self.model(x.to(self.device)) - y.to(self.device)).pow(2).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.num_updates += 1

    @torch.no_grad()
    def valid_loss(self, loader) -> float:
        self.model.eval()
        sums = torch.zeros(2, device=self.device)
        for x, y in loader:
            err = (self.model.module(x.to(self.device)) - y.to(self.device)).pow(2)
            sums += torch.stack([err.sum(), torch.tensor(float(len(x)), device=self.device)])
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()

    def consolidate_optimizer(self):
        self.optimizer.consolidate_state_dict(to=0)

    def state_dict(self):
        return {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "num_updates": self.num_updates}

    def save_checkpoint(self, path: Path, extra):
        tmp = path.with_suffix(".pt.tmp")
        torch.save({**self.state_dict(), "extra": extra}, tmp)
        os.replace(tmp, path)


def checkpoint_paths(root: Path):
    found = [(int(m.group(1)), p) for p in root.iterdir() if (m := re.fullmatch(r"checkpoint_(\d+)\.pt", p.name))]
    return [p for _, p in sorted(found, reverse=True)]


def save_checkpoint(cfg, trainer: Trainer, epoch: int, val_loss: float):
    best = min(getattr(save_checkpoint, "best", val_loss), val_loss)
    improved = val_loss <= best
    save_checkpoint.best = best
    if cfg.no_save:
        return
    conds = collections.OrderedDict()
    conds[f"checkpoint_{epoch}.pt"] = epoch % cfg.save_interval == 0
    conds["checkpoint_best.pt"] = improved
    names = [name for name, cond in conds.items() if cond]
    if not names:
        return
    trainer.consolidate_optimizer()
    if not trainer.should_save_checkpoint_on_current_rank:
        return
    cfg.save_dir.mkdir(parents=True, exist_ok=True)
    for name in names:
        trainer.save_checkpoint(cfg.save_dir / name, {"epoch": epoch, "val_loss": val_loss})
    for old in checkpoint_paths(cfg.save_dir)[cfg.keep:]:
        old.unlink()
    logger.info("saved %s", json.dumps(names))


def should_stop_early(cfg, val_loss: float) -> bool:
    if cfg.patience <= 0:
        return False
    prev = getattr(should_stop_early, "best", None)
    if prev is None or val_loss < prev:
        should_stop_early.best, should_stop_early.num_runs = val_loss, 0
        return False
    should_stop_early.num_runs += 1
    return should_stop_early.num_runs >= cfg.patience


def validate_and_save(cfg, trainer, epoch, valid_loader):
    loss = trainer.valid_loss(valid_loader)
    if trainer.rank == 0:
        logger.info("epoch %d valid %.4f", epoch, loss)
    save_checkpoint(cfg, trainer, epoch, loss)
    return should_stop_early(cfg, loss)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--save-interval", type=int, default=2)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--no-save", action="store_true")
    cfg = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING)
    try:
        g = torch.Generator().manual_seed(5)
        x = torch.randn(480, 20, generator=g)
        train, valid = TensorDataset(x[:400], x[:400].sum(1, True)), TensorDataset(x[400:], x[400:].sum(1, True))
        sampler = DistributedSampler(train, shuffle=True)
        train_loader = DataLoader(train, batch_size=20, sampler=sampler)
        valid_loader = DataLoader(valid, batch_size=20, sampler=DistributedSampler(valid, shuffle=False))
        trainer = Trainer(cfg, device)
        for epoch in range(1, cfg.epochs + 1):
            sampler.set_epoch(epoch)
            for batch in train_loader:
                trainer.train_step(*batch)
            if validate_and_save(cfg, trainer, epoch, valid_loader):
                break
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
