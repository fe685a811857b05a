import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, train_loader, lr=1e-4, log_every=10):
        self.rank = dist.get_rank()
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank)
        self.model = DistributedDataParallel(model.to(self.device), device_ids=[self.local_rank])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.train_loader = train_loader
        self.log_every = log_every
        self.global_step = 0

    def train_step(self, batch):
        hidden = batch["hidden_states"].to(self.device)
        targets = batch["input_ids"].to(self.device)
        logits = self.model(hidden[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        accuracy = (logits.argmax(-1) == targets[:, 1:]).float().mean()
        metrics = {"loss": loss.detach().clone(), "accuracy": accuracy}
        metrics["error_records_sum"] = torch.tensor(batch["error_records"], dtype=torch.int32, device=loss.device)
        metrics["error_records_total"] = torch.tensor(1.0 if self.rank == 0 else 0, device=loss.device)
        return metrics

    def log_metrics(self, metrics):
        for value in metrics.values():
            dist.reduce(value, dst=0, op=dist.ReduceOp.SUM)
        if self.rank == 0:
            world_size = dist.get_world_size()
            print(
                f"step {self.global_step}"
                f" loss {metrics['loss'].item() / world_size:.4f}"
                f" acc {metrics['accuracy'].item() / world_size:.4f}"
                f" errors {metrics['error_records_sum'].item() / metrics['error_records_total'].item():.1f}"
            )

    def run(self, num_epochs):
        self.model.train()
        for epoch in range(num_epochs):
            self.train_loader.sampler.set_epoch(epoch)
            for batch in self.train_loader:
                metrics = self.train_step(batch)
                self.global_step += 1
                if self.global_step % self.log_every == 0:
                    self.log_metrics(metrics)
