"""The LightningModule logs its validation loss with sync_dist=True on rank 0 only."""
# case: processes=2 ending=hang causes=rank-guarded-collective ranks=0 framework=lightning

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitClassifier(L.LightningModule):
    def __init__(self, lr=1e-2):
        super().__init__()
        self.lr = lr
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        acc = (logits.argmax(dim=1) == y).float().mean()
        if self.trainer.is_global_zero:  # ALSO
            self.log("val_loss", loss, on_step=True, on_epoch=False, sync_dist=True)  # GUILTY
            self.log("val_acc", acc, on_epoch=True, rank_zero_only=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def loader(n, shuffle):
    x = torch.randn(n, 16)
    return DataLoader(TensorDataset(x, x[:, :4].argmax(dim=1)), batch_size=16, shuffle=shuffle)


def main():
    L.seed_everything(42)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitClassifier(), loader(512, True), loader(128, False))
    print(trainer.callback_metrics)


if __name__ == "__main__":
    main()
