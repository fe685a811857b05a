"""Healthy: a Lightning callback exports the model on the first process for 15 s after each epoch, and the second waits in a barrier.

In the style of callbacks with rank_zero_only; the validation before it has more batches on one process than the other needs time for.
"""
# case: processes=2 ending=well causes=- ranks=- framework=lightning limit_s=150

import os
import tempfile
import time

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ExportEachEpoch(L.Callback):
    """Write a TorchScript file that the edge devices fetch, then check that it can be loaded."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="edge-")

    @rank_zero_only
    def _export(self, pl_module, epoch):
        scripted = torch.jit.trace(pl_module.net.eval(), torch.randn(1, 8, 32))
        path = os.path.join(self.folder, f"epoch{epoch}.pt")
        scripted.save(path)
        for part in range(15):
            time.sleep(1)
            if part % 5 == 0:
                print(f"signing part {part} of {path}", flush=True)
        torch.jit.load(path)
        pl_module.net.train()

    def on_validation_epoch_end(self, trainer, pl_module):
        self._export(pl_module, trainer.current_epoch)
        trainer.strategy.barrier("export")


class Keyword(L.LightningModule):
    """Detects a keyword in a short spectrogram."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        if self.global_rank == 1:
            time.sleep(0.2)
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def clips(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, 32, generator=g)
    return TensorDataset(x, (x[:, 0].mean(-1) > 0).long())


def main():
    L.seed_everything(3, verbose=False)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
                        num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False, callbacks=[ExportEachEpoch()])
    trainer.fit(Keyword(), DataLoader(clips(256, 1), batch_size=16, shuffle=True), DataLoader(clips(64, 2), batch_size=8))
    if trainer.is_global_zero:
        print(f"val loss {trainer.callback_metrics['val_loss'].item():.4f}", flush=True)


if __name__ == "__main__":
    main()
