"""A callback writes the best weights with trainer.save_checkpoint on the global zero only, and that call waits for all ranks.

Modelled on Lightning issues about trainer.save_checkpoint under `if trainer.is_global_zero` (the method ends with a barrier of the strategy).
"""
# case: processes=2 ending=hang causes=rank-guarded-collective,rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective,uneven-inputs,rank-exits-early ranks=0 framework=lightning

import os
import tempfile

import lightning as L
import torch
from torch import nn


class BestExporter(L.Callback):
    """Keep the weights of the epoch with the lowest validation loss for the demo page."""

    def __init__(self, folder):
        self.folder = folder
        self.best = float("inf")

    def on_validation_epoch_end(self, trainer, module):
        loss = float(trainer.callback_metrics["val_loss"])
        if trainer.sanity_checking or loss >= self.best:
            return  # ALSO
        self.best = loss
        if trainer.is_global_zero:  # ALSO
            trainer.save_checkpoint(os.path.join(self.folder, "demo.ckpt"), weights_only=True)  # GUILTY
            print(f"exported weights, loss {loss:.3f}", flush=True)


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def series(count, seed):
    g = torch.Generator().manual_seed(seed)
    phase = torch.rand(count, 1, generator=g) * 6.28
    wave = torch.sin(phase + torch.arange(25) * 0.4)
    return torch.utils.data.TensorDataset(wave[:, :24, None], wave[:, 24:])


def main():
    L.seed_everything(3)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[BestExporter(tempfile.mkdtemp())],
    )
    trainer.fit(  # ALSO
        Forecaster(),
        torch.utils.data.DataLoader(series(256, 0), batch_size=32, shuffle=True),
        torch.utils.data.DataLoader(series(64, 1), batch_size=32),
    )


if __name__ == "__main__":
    main()
