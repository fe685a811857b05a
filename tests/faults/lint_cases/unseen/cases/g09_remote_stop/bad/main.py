"""Heat map regression with Lightning Fabric, controlled from a graphical interface."""
import os
import pathlib

import torch
from lightning.fabric import Fabric
from torch import nn

from control import Inbox, ProgressReporter, TrainingController


class HeatmapNet(nn.Module):
    def __init__(self, channels=4, joints=3):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, joints, 1)
        )

    def forward(self, image):
        return self.net(image)


class PoseTrainer:
    def __init__(self, fabric: Fabric, model: nn.Module, callbacks, lr=1e-2, max_steps=6):
        self.fabric = fabric
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.model, self.optimizer = fabric.setup(model, optimizer)
        self.callbacks = callbacks
        self.max_steps = max_steps
        self.global_step = 0
        self.should_stop = False

    @property
    def is_global_zero(self):
        return self.fabric.global_rank == 0

    def barrier(self):
        self.fabric.barrier()

    def notify(self, hook, *args):
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def training_step(self, image, heatmap):
        loss = nn.functional.mse_loss(self.model(image), heatmap)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.optimizer.step()
        return loss.item()

    def fit(self, batches):
        self.notify("on_fit_start")
        while self.global_step < self.max_steps:
            image, heatmap = batches[self.global_step % len(batches)]
            loss = self.training_step(image, heatmap)
            self.global_step += 1
            self.notify("on_train_batch_end", loss)
            if self.should_stop:
                break  # EXPECT: rank-early-exit
        self.notify("on_fit_end")
        return self.finish()

    def finish(self):
        """Mean of the weights' norm over processes; a last check that the replicas agree."""
        norm = torch.stack([p.detach().norm() for p in self.model.parameters()]).sum()
        return self.fabric.all_reduce(norm, reduce_op="mean").item()


def synthetic_batches(rank, n=3, size=12):
    g = torch.Generator().manual_seed(rank)
    return [(torch.rand(2, 1, size, size, generator=g), torch.rand(2, 3, size, size, generator=g)) for _ in range(n)]


def main():
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", "2")), strategy="ddp")
    fabric.launch()
    fabric.seed_everything(4)
    folder = pathlib.Path(os.environ.get("CASE_TMP", "."))
    inbox = Inbox(folder / "commands.jsonl")
    if fabric.global_rank == 0:
        inbox.post("note", text="session opened")
        inbox.post("stop", after_step=3)
    fabric.barrier()
    callbacks = [ProgressReporter(folder / "progress.jsonl"), TrainingController(inbox)]
    trainer = PoseTrainer(fabric, HeatmapNet(), callbacks)
    norm = trainer.fit(synthetic_batches(fabric.global_rank))
    fabric.print(f"stopped after {trainer.global_step} steps, norm {norm:.3f}")


if __name__ == "__main__":
    main()
