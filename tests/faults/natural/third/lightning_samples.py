"""A method that runs on rank 0 only reads trainer.log_dir, a property that broadcasts.

In the style of a LightningModule that writes some reconstructions after each epoch. Modelled on Lightning-AI/pytorch-lightning#18148.
"""
# case: processes=2 ending=hang causes=rank-guarded-collective,collective-mismatch,mismatched-operation,mismatched-shape,rank-missing-collective ranks=0 framework=lightning

import os
import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(pl.LightningModule):
    def __init__(self, features=40, latent=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, features))
        self.example = torch.randn(4, features, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self(x), x)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def on_train_epoch_start(self):
        if self.current_epoch > 0:
            self.write_reconstructions()  # ALSO

    @rank_zero_only
    def write_reconstructions(self):
        with torch.no_grad():
            error = (self(self.example) - self.example).abs().mean(1)
        path = os.path.join(self.trainer.log_dir, f"reconstructions-{self.current_epoch}.txt")  # GUILTY
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.writelines(f"{e:.5f}\n" for e in error.tolist())


def main():
    pl.seed_everything(7)
    data = TensorDataset(torch.randn(1024, 40))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")), strategy="ddp", max_epochs=4,
        logger=CSVLogger(tempfile.gettempdir(), name="autoencoder"), enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, log_every_n_steps=10,
    )
    trainer.fit(AutoEncoder(), loader)
    if trainer.is_global_zero:
        print("finished", flush=True)


if __name__ == "__main__":
    main()
