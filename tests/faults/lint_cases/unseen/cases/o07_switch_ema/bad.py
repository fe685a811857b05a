"""Denoiser trained with Lightning; a callback keeps averaged weights and feeds them back now and then."""
import os
from dataclasses import dataclass

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class EMAConfig:
    decay: float = 0.95
    warmup: int = 2
    switch_every: int = 6
    """The online weights are replaced by the averaged ones every so many steps (switch EMA)."""


class ShadowWeights:
    """Exponential moving average of the parameters of a module."""

    def __init__(self, module, cfg):
        self.cfg = cfg
        self.steps = 0
        self.params = {k: p.detach().clone() for k, p in module.named_parameters()}

    def _decay(self):
        return 0.0 if self.steps <= self.cfg.warmup else self.cfg.decay

    @torch.no_grad()
    def update(self, module):
        self.steps += 1
        d = self._decay()
        for name, p in module.named_parameters():
            self.params[name].mul_(d).add_(p.detach(), alpha=1 - d)

    @torch.no_grad()
    def copy_into(self, module):
        for name, p in module.named_parameters():
            p.copy_(self.params[name])  # RELATED: update

    def state_dict(self):
        return {"steps": self.steps, "params": self.params}

    @property
    def due(self):
        return self.steps > self.cfg.warmup and self.steps % self.cfg.switch_every == 0


class SwitchEMA(Callback):
    def __init__(self, cfg, folder=None):
        self.cfg = cfg
        self.folder = folder
        self.shadow = None

    def on_fit_start(self, trainer, pl_module):
        self.shadow = ShadowWeights(pl_module, self.cfg)
        rank_zero_info(f"averaging {len(self.shadow.params)} parameters")

    @rank_zero_only  # RELATED: guard
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.shadow.update(pl_module)
        if self.shadow.due:
            self.shadow.copy_into(pl_module)  # EXPECT: rank-local-state

    @rank_zero_only
    def on_train_end(self, trainer, pl_module):
        if self.folder is not None:
            torch.save(self.shadow.state_dict(), os.path.join(self.folder, "ema.pt"))


class EpochPrinter(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        loss = trainer.callback_metrics["train_loss"]
        rank_zero_info(f"epoch {trainer.current_epoch} loss {float(loss):.4f}")


class Denoiser(pl.LightningModule):
    def __init__(self, dim=12, width=32, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.time = nn.Linear(1, width)
        self.inp = nn.Linear(dim, width)
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim))

    def forward(self, x, t):
        return self.out(self.inp(x) + self.time(t))

    def training_step(self, batch, batch_idx):
        (clean,) = batch
        t = torch.rand(len(clean), 1, device=self.device)
        noise = torch.randn_like(clean)
        noisy = (1 - t) * clean + t * noise
        loss = nn.functional.mse_loss(self(noisy, t), noise - clean)
        self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def on_train_end(self):
        total = sum(p.detach().double().abs().sum() for p in self.parameters())
        rows = self.all_gather(total)
        if self.trainer.is_global_zero:
            print("weight sums per process", [round(v, 8) for v in rows.flatten().tolist()])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Swirl(pl.LightningDataModule):
    def __init__(self, size=64, dim=12, batch_size=4):
        super().__init__()
        self.size, self.dim, self.batch_size = size, dim, batch_size

    def setup(self, stage):
        gen = torch.Generator().manual_seed(5)
        angle = torch.rand(self.size, 1, generator=gen) * 6.28
        freq = torch.arange(1, self.dim + 1)[None]
        self.data = TensorDataset(torch.sin(angle * freq))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True)


def main():
    pl.seed_everything(1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SwitchEMA(EMAConfig(), folder=os.environ.get("CASE_TMP")), EpochPrinter()],
    )
    trainer.fit(Denoiser(), datamodule=Swirl())


if __name__ == "__main__":
    main()
