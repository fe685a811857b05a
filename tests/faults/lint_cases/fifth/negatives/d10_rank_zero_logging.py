import argparse

import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def equal_error_rate(scores, labels):
    order = scores.argsort(descending=True)
    labels = labels[order].float()
    miss = 1 - labels.cumsum(0) / labels.sum()
    false = (1 - labels).cumsum(0) / (1 - labels).sum()
    return torch.min(torch.maximum(miss, false)).item()


class Verification(L.LightningModule):
    """Speaker verification: pairs are scored per rank, the error rate needs all of them."""

    def __init__(self, dim=192, speakers=1000):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(80, 512), nn.ReLU(), nn.Linear(512, dim))
        self.head = nn.Linear(dim, speakers)
        self.trials = []

    def embed(self, feats):
        return F.normalize(self.encoder(feats).mean(dim=1), dim=-1)

    def training_step(self, batch, batch_idx):
        feats, speaker = batch
        loss = F.cross_entropy(20 * self.head(self.embed(feats)), speaker)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        left, right, same = batch
        self.trials.append(torch.stack([(self.embed(left) * self.embed(right)).sum(-1), same.float()], dim=1).cpu())

    def on_validation_epoch_end(self):
        mine = torch.cat(self.trials) if self.trials else torch.zeros(0, 2)
        self.trials.clear()
        parts = [None] * self.trainer.world_size
        dist.all_gather_object(parts, mine)
        rate = None
        if self.trainer.is_global_zero:
            merged = torch.cat(parts)
            rate = equal_error_rate(merged[:, 0], merged[:, 1])
            self.log("val/trials", float(len(merged)), rank_zero_only=True)
        rate = self.trainer.strategy.broadcast(rate, src=0)
        self.log("val/eer", rate, prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Voices(L.LightningDataModule):
    def __init__(self, root):
        super().__init__()
        self.root = root

    def setup(self, stage):
        self.train_set = TensorDataset(*torch.load(f"{self.root}/train.pt"))
        self.trial_set = TensorDataset(*torch.load(f"{self.root}/trials.pt"))

    def train_dataloader(self):
        return DataLoader(self.train_set, 128, shuffle=True, num_workers=4)

    def val_dataloader(self):
        return DataLoader(self.trial_set, 128, num_workers=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--gpus", type=int, default=4)
    args = parser.parse_args()
    L.seed_everything(8, workers=True)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=args.gpus,
        strategy="ddp",
        max_epochs=60,
        num_sanity_val_steps=0,
        callbacks=[
            ModelCheckpoint(monitor="val/eer", mode="min", filename="{epoch}"),
            EarlyStopping(monitor="val/eer", mode="min", patience=5),
        ],
    )
    trainer.fit(Verification(), datamodule=Voices(args.root))
    if trainer.is_global_zero:
        print(f"best {trainer.checkpoint_callback.best_model_path}")


if __name__ == "__main__":
    main()
