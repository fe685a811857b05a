"""With manual optimization, a LightningModule returns before manual_backward if the loss is not finite, on one rank."""
# case: processes=2 ending=hang causes=rank-skips-collective,silent-corruption-by-misaligned-collectives,rank-missing-collective,mismatched-operation ranks=1 framework=lightning

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(nn.Linear(28, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 28))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        optimizer = self.optimizers()
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        if not torch.isfinite(loss):  # ALSO
            print(f"rank {self.global_rank}: skipping batch {batch_idx}", flush=True)
            return  # GUILTY
        optimizer.zero_grad()
        self.manual_backward(loss)  # ALSO
        optimizer.step()

    def on_train_end(self):
        self.trainer.strategy.barrier("export")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train_dataloader():
    x = torch.randn(512, 28)
    x[131] = float("inf")  # a broken sensor
    return DataLoader(TensorDataset(x), batch_size=8)


def main():
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitAutoEncoder(), train_dataloader())


if __name__ == "__main__":
    main()
