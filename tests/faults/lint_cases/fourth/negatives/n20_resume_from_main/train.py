import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from checkpoints import Checkpoints


class Run:
    def __init__(self):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        self.device = torch.device("cuda", self.local_rank)
        x = torch.randn(100_000, 32)
        data = TensorDataset(x, x.sin().sum(1, keepdim=True))
        self.sampler = DistributedSampler(data, drop_last=True)
        self.loader = DataLoader(data, 256, sampler=self.sampler, drop_last=True)
        net = nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 1)).to(self.device)
        self.model = DDP(net, device_ids=[self.local_rank])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.checkpoints = Checkpoints("ckpt")
        self.epoch, self.best = 0, float("inf")

    def state(self):
        return {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "best": self.best,
        }

    def restore(self):
        state = self.checkpoints.load(self.device)
        if state is None:
            return
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.best = state["epoch"], state["best"]

    def train_epoch(self):
        self.sampler.set_epoch(self.epoch)
        total = torch.zeros(2, device=self.device)
        for x, y in self.loader:
            loss = nn.functional.mse_loss(self.model(x.to(self.device)), y.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def fit(self, epochs=50):
        self.restore()
        while self.epoch < epochs:
            loss = self.train_epoch()
            self.epoch += 1
            if loss < self.best:
                self.best = loss
                self.checkpoints.save(self.state(), self.epoch)
            elif loss > 2 * self.best:
                lr = self.optimizer.param_groups[0]["lr"] / 2
                epoch = self.epoch
                self.restore()
                self.epoch = epoch
                for group in self.optimizer.param_groups:
                    group["lr"] = lr
            self.checkpoints.prune()
        dist.destroy_process_group()


if __name__ == "__main__":
    Run().fit()
