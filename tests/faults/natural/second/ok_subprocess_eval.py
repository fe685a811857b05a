"""Healthy: after each epoch rank 0 runs an external evaluation in a subprocess (about 5 s) while the others wait in a barrier.

In the style of Lightning's examples, with a callback.
"""
# case: processes=4 ending=well causes=- ranks=- framework=lightning limit_s=120

import subprocess
import sys

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVALUATION = """
import time
total, start = 0, time.time()
while time.time() - start < 4:
    total += sum(i * i for i in range(1000))
    time.sleep(0.01)
time.sleep(1)
print("score 0.731")
"""


class ExternalEvaluation(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero:
            result = subprocess.run([sys.executable, "-c", EVALUATION], capture_output=True, text=True, check=True)
            print(f"epoch {trainer.current_epoch}: {result.stdout.strip()}", flush=True)
        trainer.strategy.barrier()


class AutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 28))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(1, verbose=False)
    data = TensorDataset(torch.randn(512, 28))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=4,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ExternalEvaluation()],
    )
    trainer.fit(AutoEncoder(), DataLoader(data, batch_size=16, shuffle=True))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
