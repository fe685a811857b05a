"""The checkpoint of rank 0 no longer fits into the quota of its file size when the optimizer state is added to it.

In the style of minGPT's trainer, with snapshots; the quota of the site is set with RLIMIT_FSIZE.
"""
# case: processes=3 ending=crash causes=python-exception-on-one-rank,checkpoint-folder-unusable ranks=0 framework=ddp

import os
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TrainerConfig:
    max_epochs = 5
    batch_size = 32
    learning_rate = 3e-4
    snapshot_path = "snapshot.pt"
    optimizer_after_epoch = 2  # a snapshot without it is enough in the beginning
    quota_bytes = 3_000_000


class Trainer:
    def __init__(self, model, data, config):
        self.config, self.data = config, data
        self.rank = int(os.environ["RANK"])
        self.model = DDP(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate)

    def _run_batch(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch):
        x, y = self.data
        for i in range(0, len(x), self.config.batch_size):
            loss = self._run_batch(x[i : i + self.config.batch_size], y[i : i + self.config.batch_size])
        if self.rank == 0:
            print(f"epoch {epoch} | loss {loss:.5f}", flush=True)

    def _save_snapshot(self, epoch):
        snapshot = {"model_state": self.model.module.state_dict(), "finished_epoch": epoch}
        if epoch > self.config.optimizer_after_epoch:
            snapshot["optimizer_state"] = self.optimizer.state_dict()
        torch.save(snapshot, self.config.snapshot_path)  # GUILTY
        print(f"snapshot saved at epoch {epoch}", flush=True)

    def train(self):
        for epoch in range(self.config.max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                self._save_snapshot(epoch)  # ALSO
            dist.barrier()


def main():
    config = TrainerConfig()
    resource.setrlimit(resource.RLIMIT_FSIZE, (config.quota_bytes, resource.RLIM_INFINITY))
    dist.init_process_group(backend="gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.randn(512, 256)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.GELU(), nn.Linear(256, 10))
    Trainer(model, (x, x[:, :10].argmax(1)), config).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
