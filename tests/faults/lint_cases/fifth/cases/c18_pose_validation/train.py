import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from module import PoseModule


class CropData(L.LightningDataModule):
    def __init__(self, root, batch_size):
        super().__init__()
        self.root = root
        self.batch_size = batch_size

    def setup(self, stage):
        self.train_set = TensorDataset(*torch.load(f"{self.root}/train.pt"))
        self.val_set = TensorDataset(*torch.load(f"{self.root}/val.pt"))

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, num_workers=4)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size, num_workers=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    L.seed_everything(5, workers=True)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=args.gpus,
        strategy="ddp",
        max_epochs=90,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(monitor="val/loss", mode="min", save_last=True)],
    )
    trainer.fit(PoseModule(), datamodule=CropData(args.root, args.batch_size))


if __name__ == "__main__":
    main()
