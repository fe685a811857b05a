"""The setting `eval_mode` decides who evaluates and whether the counts are summed; both tests read the same setting."""
import os
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass(frozen=True)
class EvalConfig:
    mode: str = "sharded"
    every: int = 1
    batch_size: int = 16

    def __post_init__(self):
        if self.mode not in ("sharded", "main_only"):
            raise ValueError(f"unknown eval mode {self.mode!r}")

    @property
    def sharded(self) -> bool:
        return self.mode == "sharded"


class Parity(Dataset):
    def __init__(self, n, seed):
        self.x = torch.randint(0, 2, (n, 7), generator=torch.Generator().manual_seed(seed)).float()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.x[i, :3].sum()) % 2


class EvalLoop:
    def __init__(self, cfg: EvalConfig, dataset: Dataset, device):
        self.cfg, self.dataset, self.device = cfg, dataset, device
        self.rank = dist.get_rank()
        sampler = DistributedSampler(dataset, shuffle=False, drop_last=False) if cfg.sharded else None
        self.loader = DataLoader(dataset, batch_size=cfg.batch_size, sampler=sampler)

    @property
    def takes_part(self) -> bool:
        return self.cfg.sharded or self.rank == 0

    def _accumulate(self, module: nn.Module) -> torch.Tensor:
        counts = torch.zeros(2, dtype=torch.long, device=self.device)
        for x, y in self.loader:
            hits = module(x.to(self.device)).argmax(1) == y.to(self.device)
            counts += torch.stack([hits.sum(), torch.ones_like(hits).sum()])
        return counts

    def _combine(self, counts: torch.Tensor) -> torch.Tensor:
        if self.cfg.sharded:
            dist.all_reduce(counts)
        return counts

    @torch.no_grad()
    def run(self, module: nn.Module) -> Optional[float]:
        if not self.takes_part:
            return None
        module.eval()
        hits, total = self._combine(self._accumulate(module)).tolist()
        module.train()
        return hits / max(total, 1)


class Trainer:
    def __init__(self, eval_cfg: EvalConfig, device):
        self.device = device
        self.train_set = Parity(512, 1)
        self.sampler = DistributedSampler(self.train_set)
        self.loader = DataLoader(self.train_set, batch_size=32, sampler=self.sampler)
        self.module = nn.Sequential(nn.Linear(7, 48), nn.ReLU(), nn.Linear(48, 2)).to(device)
        self.model = DistributedDataParallel(self.module, device_ids=[device.index] if device.type == "cuda" else None)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.eval_cfg = eval_cfg
        self.eval_loop = EvalLoop(eval_cfg, Parity(120, 2), device)
        self.best: Tuple[float, int] = (0.0, -1)

    def shared(self, acc: Optional[float]) -> float:
        """The accuracy as every rank should know it; one broadcast is needed where only rank 0 has computed it."""
        if self.eval_cfg.sharded:
            return acc
        value = torch.tensor([0.0 if acc is None else acc], device=self.device)
        dist.broadcast(value, src=0)
        return value.item()

    def evaluate(self, epoch: int) -> None:
        acc = self.shared(self.eval_loop.run(self.module))
        if acc > self.best[0]:
            self.best = (acc, epoch)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} acc {acc:.3f} best {self.best}")

    def fit(self, epochs: int) -> None:
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
            if (epoch + 1) % self.eval_cfg.every == 0:
                self.evaluate(epoch)
            if epoch - self.best[1] > 3:
                break


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        Trainer(EvalConfig(mode=os.environ.get("EVAL_MODE", "main_only")), device).fit(6)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
