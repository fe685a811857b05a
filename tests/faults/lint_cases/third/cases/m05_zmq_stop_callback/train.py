import argparse

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from callbacks import TrainingControllerZMQ


class ConfmapModel(pl.LightningModule):
    def __init__(self, keypoints=13, lr=1e-4):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, keypoints, 1),
        )

    def training_step(self, batch, batch_idx):
        image, confmap = batch
        loss = nn.functional.mse_loss(self.net(image), confmap)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        image, confmap = batch
        loss = nn.functional.mse_loss(self.net(image), confmap)
        self.log("val/loss", loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def make_loader(n, shuffle):
    data = TensorDataset(torch.rand(n, 1, 128, 128), torch.rand(n, 13, 128, 128))
    return DataLoader(data, batch_size=4, shuffle=shuffle, num_workers=2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--controller_address", default="tcp://127.0.0.1:9000")
    args = parser.parse_args()
    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=50,
        callbacks=[TrainingControllerZMQ(args.controller_address)],
    )
    trainer.fit(ConfmapModel(), make_loader(400, True), make_loader(40, False))


if __name__ == "__main__":
    main()
