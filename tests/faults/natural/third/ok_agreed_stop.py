"""Healthy: one rank wants to stop early, all agree by a reduction and leave; rank 0 then exports for 15 s after the process group is gone.

In the style of Lightning with early stopping by the validation loss.
"""
# case: processes=2 ending=well causes=- ranks=- framework=lightning limit_s=90

import os
import time

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Patience(pl.Callback):
    """Stops when any rank has seen its loss below the goal for some batches."""

    def __init__(self, goal, patience):
        self.goal, self.patience, self.below = goal, patience, 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.below = self.below + 1 if outputs["loss"].item() < self.goal else 0
        wants = torch.tensor(float(self.below >= self.patience))
        if trainer.strategy.reduce(wants, reduce_op="sum") > 0:
            print(f"rank {trainer.global_rank}: stop after batch {batch_idx} (own wish: {bool(wants)})", flush=True)
            trainer.should_stop = True


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).squeeze(-1), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    pl.seed_everything(3)
    x = torch.randn(4096, 6)
    rank = int(os.environ.get("RANK", "0"))
    y = x.sum(1) + (0.3 * torch.randn(4096) if rank == 0 else 0)  # the labels of rank 0 are noisy
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")), strategy="ddp", max_epochs=5, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Patience(0.02, 5)],
    )
    model = Line()
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=16))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        for part in range(5):
            torch.save({"part": part, **model.state_dict()}, f"export-{part}.pt")
            time.sleep(3)
        print("exported", flush=True)


if __name__ == "__main__":
    main()
