import math
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Engine:
    """Runs training epochs and scores the dev sets after each of them."""

    def __init__(self, model, device, config):
        self.device = device
        self.config = config
        self.rank = dist.get_rank()
        self.cpu_group = dist.new_group(backend="gloo", timeout=timedelta(minutes=10))
        self.model = DistributedDataParallel(model.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.best_score = math.inf

    def train_epoch(self, loader, epoch):
        self.model.train()
        loader.sampler.set_epoch(epoch)
        for step, (feats, targets) in enumerate(loader):
            logits = self.model(feats.to(self.device))
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to(self.device).flatten())
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizer.step()
            if self.rank == 0 and step % 50 == 0:
                print(f"ep {epoch} step {step} ce {loss.item():.3f}")

    def eval_epoch(self, loaders, epoch):
        scores = {}
        for name, loader in loaders.items():
            if self.rank == 0:
                scores[name] = self._score(loader)
            else:
                self._wait_for_eval()
        result = [scores]
        dist.broadcast_object_list(result, src=0, group=self.cpu_group)
        self._update_learning_rate(result[0]["dev"])
        if self.rank == 0:
            print(f"ep {epoch} scores {result[0]}")
        return result[0]

    @torch.no_grad()
    def _score(self, loader):
        net = self.model.module
        net.eval()
        total, count = 0.0, 0
        for feats, targets in loader:
            self._report_progress(True)
            logits = net(feats.to(self.device))
            targets = targets.to(self.device).flatten()
            total += F.cross_entropy(logits.flatten(0, 1), targets, reduction="sum").item()
            count += targets.numel()
        self._report_progress(False)
        return total / max(count, 1)

    def _report_progress(self, has_data):
        flag = torch.tensor([has_data], dtype=torch.int8)
        dist.broadcast(flag, src=0, group=self.cpu_group)

    def _wait_for_eval(self):
        flag = torch.tensor([True], dtype=torch.int8)
        while flag:
            flag = dist.broadcast(flag, src=0, group=self.cpu_group)

    def _update_learning_rate(self, score):
        if score >= self.best_score:
            for group in self.optimizer.param_groups:
                group["lr"] *= self.config.decay
        self.best_score = min(self.best_score, score)
