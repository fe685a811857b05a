import argparse

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from callbacks import CSVLogCallback, ProgressFile


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class PoseModel(pl.LightningModule):
    def __init__(self, keypoints, width, lr):
        super().__init__()
        self.save_hyperparameters()
        self.down = nn.Sequential(block(1, width), nn.MaxPool2d(2), block(width, 2 * width), nn.MaxPool2d(2))
        self.up = nn.Sequential(block(2 * width, width), nn.Upsample(scale_factor=2), block(width, width))
        self.head = nn.Conv2d(width, keypoints, 1)

    def forward(self, images):
        return self.head(self.up(self.down(images)))

    def _loss(self, batch):
        images, maps = batch
        return F.mse_loss(self(images), maps)

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self._loss(batch), on_epoch=True, prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr, amsgrad=True)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}


class PoseData(pl.LightningDataModule):
    def __init__(self, path, batch_size):
        super().__init__()
        self.path, self.batch_size = path, batch_size

    def setup(self, stage):
        blob = torch.load(self.path, map_location="cpu")
        self.sets = {k: TensorDataset(blob[k]["images"], blob[k]["maps"]) for k in ("train", "val")}

    def train_dataloader(self):
        return DataLoader(self.sets["train"], self.batch_size, shuffle=True, num_workers=4, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.sets["val"], self.batch_size, num_workers=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/pose")
    parser.add_argument("--keypoints", type=int, default=13)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--max-epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    pl.seed_everything(42, workers=True)
    callbacks = [
        ModelCheckpoint(args.out, monitor="val/loss", save_last=True),
        EarlyStopping("val/loss", patience=10),
        CSVLogCallback(f"{args.out}/training_log.csv", ["train/loss", "val/loss"]),
        ProgressFile(f"{args.out}/progress.json"),
    ]
    trainer = pl.Trainer(accelerator="gpu", devices=args.devices, strategy="ddp", max_epochs=args.max_epochs,
                         callbacks=callbacks, logger=False)
    trainer.fit(PoseModel(args.keypoints, args.width, args.lr), datamodule=PoseData(args.data, args.batch_size))


if __name__ == "__main__":
    main()
