import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from report import EpochReport

DEVICES = 4


class Classifier(L.LightningModule):
    def __init__(self, features, classes, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(features, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, classes)
        )

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        if self.global_rank == 0 and batch_idx % 100 == 0:
            print(f"batch {batch_idx}: {loss.item():.4f} on this rank")
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        self.log("val/loss", nn.functional.cross_entropy(logits, batch[1]), sync_dist=True)
        return {"prediction": logits.argmax(dim=1)}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def loader(path, shuffle):
    x, y = torch.load(path)
    rows = len(x) // DEVICES * DEVICES
    x, y = x[:rows], y[:rows]
    return DataLoader(TensorDataset(x, y), batch_size=128, shuffle=shuffle, drop_last=shuffle)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    args = parser.parse_args()
    L.seed_everything(5)
    callbacks = [
        EpochReport("reports", args.classes),
        ModelCheckpoint(monitor="val/loss", save_top_k=2),
        EarlyStopping(monitor="val/loss", patience=5),
    ]
    trainer = L.Trainer(devices=DEVICES, strategy="ddp", max_epochs=100, sync_batchnorm=True, callbacks=callbacks)
    trainer.fit(Classifier(args.features, args.classes), loader(args.train, True), loader(args.val, False))
    if trainer.is_global_zero:
        print(f"best: {trainer.checkpoint_callback.best_model_path}")


if __name__ == "__main__":
    main()
