import argparse
import json
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


class MetricFile(pl.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = Path(path)

    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
        self.append({"epoch": trainer.current_epoch, **metrics})

    @rank_zero_only
    def append(self, row):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as handle:
            handle.write(json.dumps(row) + "\n")


class TimeLimit(pl.Callback):
    """Stops the run when any process has used up its wall-clock budget."""

    def __init__(self, minutes):
        super().__init__()
        self.deadline = time.monotonic() + 60 * minutes

    def on_train_epoch_end(self, trainer, pl_module):
        late = trainer.strategy.reduce_boolean_decision(time.monotonic() > self.deadline, all=False)
        trainer.should_stop = trainer.should_stop or late


class Regressor(pl.LightningModule):
    def __init__(self, features, width, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.huber_loss(self.net(x).squeeze(1), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mae", F.l1_loss(self.net(x).squeeze(1), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def finish(trainer, out):
    final = Path(out) / "final.ckpt"
    trainer.save_checkpoint(final)
    summary = {k: float(v) for k, v in trainer.callback_metrics.items()}
    if trainer.is_global_zero:
        (Path(out) / "summary.json").write_text(json.dumps(summary, indent=2))
        latest = Path(out) / "latest.ckpt"
        latest.unlink(missing_ok=True)
        latest.symlink_to(final.name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/reg")
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    pl.seed_everything(3, workers=True)
    blob = torch.load(args.data, map_location="cpu")
    train = DataLoader(TensorDataset(*blob["train"]), 256, shuffle=True, num_workers=2, drop_last=True)
    val = DataLoader(TensorDataset(*blob["val"]), 256, num_workers=2)
    trainer = pl.Trainer(accelerator="gpu", devices=args.devices, strategy="ddp", max_epochs=args.epochs,
                         default_root_dir=args.out, logger=False, enable_checkpointing=False,
                         callbacks=[MetricFile(Path(args.out) / "metrics.jsonl"), TimeLimit(args.minutes)])
    trainer.fit(Regressor(args.features, args.width, args.lr), train, val)
    finish(trainer, args.out)


if __name__ == "__main__":
    main()
