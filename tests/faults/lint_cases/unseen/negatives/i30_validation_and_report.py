"""Training entry point that refuses bad settings on all ranks alike and lets rank 0 judge the result once the group is gone."""
import argparse
import hashlib
import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainConfig:
    global_batch: int = 32
    epochs: int = 4
    lr: float = 5e-3
    min_accuracy: float = 0.0
    report: str = "report.json"

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def check(self) -> None:
        if self.epochs < 1:
            raise ValueError("epochs must be at least 1")
        if not 0.0 <= self.min_accuracy <= 1.0:
            raise ValueError(f"min_accuracy {self.min_accuracy} is not a fraction")

    def local_batch(self) -> int:
        world = dist.get_world_size()
        if self.global_batch % world != 0:
            raise ValueError(f"global batch {self.global_batch} cannot be split over {world} processes")
        return self.global_batch // world


class ConfigMismatch(RuntimeError):
    pass


def verify_same(cfg: TrainConfig) -> None:
    """Every rank holds all digests, so they all raise or none does."""
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, cfg.digest())
    odd = [rank for rank, d in enumerate(digests) if d != digests[0]]
    if odd:
        raise ConfigMismatch(f"settings of ranks {odd} differ from those of rank 0")


class Run:
    def __init__(self, cfg: TrainConfig, device):
        self.cfg, self.device = cfg, device
        verify_same(cfg)
        g = torch.Generator().manual_seed(12)
        x = torch.randn(640, 6, generator=g)
        y = (x[:, 0] * x[:, 1] > 0).long()
        self.train_set, self.test_set = TensorDataset(x[:512], y[:512]), TensorDataset(x[512:], y[512:])
        self.net = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 2)).to(device)
        self.model = DistributedDataParallel(self.net, device_ids=[device.index] if device.type == "cuda" else None)

    def train(self) -> None:
        sampler = DistributedSampler(self.train_set)
        loader = DataLoader(self.train_set, batch_size=self.cfg.local_batch(), sampler=sampler, drop_last=True)
        if len(loader) == 0:
            raise ValueError("the batch is larger than a rank's part of the data")
        opt = torch.optim.Adam(self.model.parameters(), lr=self.cfg.lr)
        for epoch in range(self.cfg.epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()

    @torch.no_grad()
    def test(self) -> float:
        self.net.eval()
        counts = torch.zeros(2, device=self.device)
        for x, y in DataLoader(self.test_set, batch_size=16, sampler=DistributedSampler(self.test_set, shuffle=False)):
            y = y.to(self.device)
            hits = (self.net(x.to(self.device)).argmax(1) == y).sum()
            counts += torch.stack([hits, hits.new_tensor(len(y))])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()


def run_distributed(cfg: TrainConfig):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    try:
        run = Run(cfg, torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))
        run.train()
        return rank, run.test()
    except (ValueError, ConfigMismatch):
        if rank == 0:
            log.exception("settings refused")
        raise
    finally:
        dist.destroy_process_group()


def judge(cfg: TrainConfig, accuracy: float) -> Optional[str]:
    with open(cfg.report + ".tmp", "w") as f:
        json.dump({"accuracy": accuracy, **asdict(cfg)}, f)
    os.replace(cfg.report + ".tmp", cfg.report)
    return None if accuracy >= cfg.min_accuracy else f"accuracy {accuracy:.3f} is below {cfg.min_accuracy}"


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--min-accuracy", type=float, default=0.0)
    cfg = TrainConfig(**vars(parser.parse_args(argv)))
    cfg.check()
    rank, accuracy = run_distributed(cfg)
    if rank != 0:
        return
    complaint = judge(cfg, accuracy)
    if complaint is not None:
        raise RuntimeError(complaint)
    print(f"accuracy {accuracy:.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
