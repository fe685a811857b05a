import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ProteinData(LightningDataModule):
    def __init__(self, path, batch_size=8):
        super().__init__()
        self.path, self.batch_size = path, batch_size

    def setup(self, stage=None):
        blob = torch.load(self.path)
        self.train_set = TensorDataset(blob["train_seq"], blob["train_xyz"])
        self.val_set = TensorDataset(blob["val_seq"], blob["val_xyz"])

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size)


class LitStructure(LightningModule):
    def __init__(self, dim=256, lr=1e-4):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(21, dim)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 8, batch_first=True), 6)
        self.out = nn.Linear(dim, 3)

    def forward(self, seq):
        return self.out(self.body(self.embed(seq)))

    def _metrics(self, batch):
        seq, xyz = batch
        pred = self(seq)
        distance = torch.cdist(pred, pred) - torch.cdist(xyz, xyz)
        return distance.pow(2).mean(), (distance.abs() < 2.0).float().mean()

    def _log_all(self, prefix, values):
        for name, value in values.items():
            self.log(
                f"{prefix}/{name}",
                value,
                on_step=prefix == "train",
                on_epoch=True,
                rank_zero_only=True,
            )

    def training_step(self, batch, batch_idx):
        loss, lddt = self._metrics(batch)
        self._log_all("train", {"loss": loss, "lddt": lddt})
        return loss

    def validation_step(self, batch, batch_idx):
        loss, lddt = self._metrics(batch)
        self._log_all("val", {"loss": loss, "lddt": lddt})

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
