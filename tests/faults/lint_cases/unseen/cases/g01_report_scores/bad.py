"""Audio tag classifier trained with Lightning; validation scores go to a JSON-lines report next to the checkpoints."""
import json
import os
import pathlib
from dataclasses import dataclass, field
from datetime import timedelta

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


@dataclass
class ExperimentConfig:
    num_classes: int = 5
    feature_dim: int = 16
    hidden: int = 32
    lr: float = 1e-2
    epochs: int = 2
    batch_size: int = 8
    timeout_s: float = float(os.environ.get("DIST_TIMEOUT_S", "30"))
    workdir: pathlib.Path = field(default_factory=lambda: pathlib.Path(os.environ.get("CASE_TMP", ".")) / "tagger")


class TagClassifier(pl.LightningModule):
    def __init__(self, cfg: ExperimentConfig):
        super().__init__()
        self.cfg = cfg
        self.net = nn.Sequential(nn.Linear(cfg.feature_dim, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.num_classes))
        self.criterion = nn.CrossEntropyLoss()
        self.val_metrics = MetricCollection(
            {
                "acc": MulticlassAccuracy(num_classes=cfg.num_classes, average="micro"),
                "f1": MulticlassF1Score(num_classes=cfg.num_classes, average="macro"),
            },
            prefix="val/",
        )

    @property
    def val_scores(self):
        """Current validation scores as plain floats."""
        return {name: float(value) for name, value in self.val_metrics.compute().items()}  # RELATED: hidden-collective

    def forward(self, features):
        return self.net(features)

    def training_step(self, batch, batch_idx):
        features, target = batch
        loss = self.criterion(self(features), target)
        self.log("train/loss", loss)
        return loss

    def on_validation_epoch_start(self):
        self.val_metrics.reset()

    def validation_step(self, batch, batch_idx):
        features, target = batch
        logits = self(features)
        self.val_metrics.update(logits, target)
        self.log("val/loss", self.criterion(logits, target), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.cfg.lr)


class ScoreReport(Callback):
    """Appends one JSON line per validation epoch and keeps the plain weights of the last epoch."""

    def __init__(self, workdir: pathlib.Path):
        self.workdir = workdir
        self.report = workdir / "scores.jsonl"

    @rank_zero_only
    def on_fit_start(self, trainer, pl_module):
        self.workdir.mkdir(parents=True, exist_ok=True)
        self.report.write_text("")

    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        if trainer.world_size > 1:
            rank_zero_info(f"scores are aggregated over {trainer.world_size} processes")
        self._append(trainer, pl_module)

    @rank_zero_only  # RELATED: guard
    def _append(self, trainer, pl_module):
        row = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        row.update(pl_module.val_scores)  # EXPECT: rank-guarded-collective
        with self.report.open("a") as f:
            f.write(json.dumps(row) + "\n")

    @rank_zero_only
    def on_fit_end(self, trainer, pl_module):
        torch.save(pl_module.net.state_dict(), self.workdir / "weights.pt")


class SyntheticTags(pl.LightningDataModule):
    def __init__(self, cfg: ExperimentConfig):
        super().__init__()
        self.cfg = cfg

    def _split(self, seed, n):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, self.cfg.feature_dim, generator=g)
        y = torch.randint(0, self.cfg.num_classes, (n,), generator=g)
        return TensorDataset(x, y)

    def train_dataloader(self):
        return DataLoader(self._split(0, 64), batch_size=self.cfg.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self._split(1, 32), batch_size=self.cfg.batch_size)


def main():
    cfg = ExperimentConfig()
    pl.seed_everything(17)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "2")),
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=cfg.timeout_s)),
        max_epochs=cfg.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[ScoreReport(cfg.workdir)],
    )
    trainer.fit(TagClassifier(cfg), datamodule=SyntheticTags(cfg))


if __name__ == "__main__":
    main()
