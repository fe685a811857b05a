import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from preempt import PreemptionWatcher


@dataclass
class TrainConfig:
    run_dir: Path = field(default_factory=lambda: Path("runs/tts"))
    ckpt_freq: int = 5000
    max_steps: int = 500_000
    batch_size: int = 16
    lr: float = 2e-4


class Loop:
    def __init__(self, cfg):
        self.cfg = cfg
        self.local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl")
        self.watcher = PreemptionWatcher()
        torch.manual_seed(0)
        self.device = torch.device("cuda", self.local_rank)
        net = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 80)).to(self.device)
        self.model = DistributedDataParallel(net, device_ids=[self.local_rank])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        data = TensorDataset(torch.randn(100_000, 128), torch.randn(100_000, 80))
        self.sampler = DistributedSampler(data, drop_last=True)
        self.loader = DataLoader(data, cfg.batch_size, sampler=self.sampler, drop_last=True)
        self.step = 0

    def batches(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def save(self):
        if dist.get_rank() == 0:
            self.cfg.run_dir.mkdir(parents=True, exist_ok=True)
            state = {"model": self.model.module.state_dict(), "step": self.step}
            torch.save(state, self.cfg.run_dir / f"checkpoint_{self.step:08d}.pt")
        dist.barrier()

    def train(self):
        for text, mel in self.batches():
            loss = nn.functional.l1_loss(self.model(text.to(self.device)), mel.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % self.cfg.ckpt_freq == 0:
                self.save()
            if self.watcher.requested:
                self.save()
                break
            if self.step >= self.cfg.max_steps:
                break
        dist.destroy_process_group()


if __name__ == "__main__":
    Loop(TrainConfig()).train()
