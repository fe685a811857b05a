"""Discrete auto-encoder trained with Accelerate; behaviour is added through small callbacks."""
import argparse
import os
from dataclasses import dataclass
from typing import List

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class PatchDataset(Dataset):
    """Patches whose noise level depends on where in the collection they come from."""

    def __init__(self, size=64, dim=16):
        gen = torch.Generator().manual_seed(3)
        noise = torch.linspace(0.1, 2.0, size)[:, None]
        basis = torch.randn(4, dim, generator=gen)
        codes = torch.randn(size, 4, generator=gen)
        self.patches = codes @ basis + noise * torch.randn(size, dim, generator=gen)

    def __len__(self):
        return len(self.patches)

    def __getitem__(self, idx):
        return self.patches[idx]


class DiscreteVAE(nn.Module):
    def __init__(self, dim=16, tokens=8, hidden=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, tokens))
        self.codebook = nn.Linear(tokens, hidden, bias=False)
        self.decoder = nn.Sequential(nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, x, temperature=1.0):
        soft = F.gumbel_softmax(self.encoder(x), tau=temperature, dim=-1)
        return self.decoder(self.codebook(soft))


@dataclass
class EpochStats:
    epoch: int
    loss: float
    loss_avg: float
    lr: float


class Callback:
    def on_epoch_end(self, trainer, stats):
        pass

    def on_fit_end(self, trainer):
        pass


class PlateauDecay(Callback):
    """Halves the learning rate when the training loss stops improving."""

    def __init__(self, optimizer, factor=0.5, patience=0, threshold=0.03):
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="min", factor=factor, patience=patience, threshold=threshold
        )

    def on_epoch_end(self, trainer, stats):
        self.scheduler.step(stats.loss)  # EXPECT: rank-local-state


class ConsoleLogger(Callback):
    def on_epoch_end(self, trainer, stats):
        if trainer.accelerator.is_main_process:
            print(f"epoch {stats.epoch} loss {stats.loss_avg:.4f} lr {stats.lr:.2e}")


class WeightSaver(Callback):
    def __init__(self, folder, every=4):
        self.folder, self.every = folder, every

    def on_epoch_end(self, trainer, stats):
        if self.folder is None or (stats.epoch + 1) % self.every:
            return
        acc = trainer.accelerator
        acc.wait_for_everyone()
        if acc.is_main_process:
            plain = acc.unwrap_model(trainer.model)
            torch.save(plain.state_dict(), os.path.join(self.folder, f"dvae-{stats.epoch}.pt"))


class ReplicaReport(Callback):
    """Prints learning rate and weight norm of every process once training is over."""

    def on_fit_end(self, trainer):
        acc = trainer.accelerator
        norm = torch.stack([p.detach().norm() for p in trainer.model.parameters()]).sum()
        row = torch.stack([torch.tensor(trainer.current_lr), norm.cpu()])[None].to(acc.device)
        table = acc.gather(row)
        if acc.is_main_process:
            for rank, (lr, weight_norm) in enumerate(table.tolist()):
                print(f"process {rank}: lr {lr:.3e} |w| {weight_norm:.6f}")


class Trainer:
    def __init__(self, accelerator, model, optimizer, loader, callbacks: List[Callback]):
        self.accelerator = accelerator
        self.callbacks = callbacks
        self.model, self.optimizer, self.loader = accelerator.prepare(model, optimizer, loader)
        self.temperature = 1.0

    @property
    def current_lr(self):
        return float(self.optimizer.param_groups[0]["lr"])

    def _average(self, value):
        tensor = torch.tensor(value, device=self.accelerator.device)
        return self.accelerator.reduce(tensor, reduction="mean").item()

    def _run_epoch(self):
        running = []
        for patches in self.loader:
            recon = self.model(patches, self.temperature)
            loss = F.mse_loss(recon, patches)
            self.optimizer.zero_grad()
            self.accelerator.backward(loss)
            self.optimizer.step()
            running.append(loss.item())
        return sum(running) / max(len(running), 1)  # RELATED: taint-source

    def fit(self, epochs):
        for epoch in range(epochs):
            loss = self._run_epoch()
            stats = EpochStats(epoch, loss, self._average(loss), self.current_lr)
            for callback in self.callbacks:
                callback.on_epoch_end(self, stats)
            self.temperature = max(0.5, self.temperature * 0.97)
        for callback in self.callbacks:
            callback.on_fit_end(self)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", default=os.environ.get("CASE_TMP"))
    args, _ = parser.parse_known_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    model = DiscreteVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(PatchDataset(), batch_size=4, shuffle=True)
    callbacks = [PlateauDecay(optimizer), ConsoleLogger(), WeightSaver(args.out), ReplicaReport()]
    Trainer(accelerator, model, optimizer, loader, callbacks).fit(args.epochs)
    accelerator.end_training()


if __name__ == "__main__":
    main()
