import argparse

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules import HuBERTPreTrainModule


class MaskedPredictor(nn.Module):
    def __init__(self, classes=100, dim=256):
        super().__init__()
        self.extract = nn.Conv1d(1, dim, 400, stride=320)
        self.encode = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, classes)

    def forward(self, waveforms, labels, lengths):
        feats = self.extract(waveforms[:, None]).transpose(1, 2)
        penalty = feats.float().pow(2).mean()
        hidden, _ = self.encode(feats)
        mask = torch.rand(hidden.shape[:2], device=hidden.device) < 0.5
        labels = labels[:, : hidden.shape[1]]
        return self.out(hidden)[mask], labels[mask], penalty


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--manifest", default="exp/data.pt")
    args = parser.parse_args()
    seed_everything(1337)
    waves, labels, lengths = torch.load(args.manifest)
    loader = DataLoader(TensorDataset(waves, labels, lengths), batch_size=8, shuffle=True, drop_last=True)
    module = HuBERTPreTrainModule(MaskedPredictor())
    trainer = Trainer(
        devices=args.gpus, strategy="ddp", max_steps=250000, callbacks=[ModelCheckpoint(every_n_train_steps=5000)]
    )
    trainer.fit(module, loader)


if __name__ == "__main__":
    main()
