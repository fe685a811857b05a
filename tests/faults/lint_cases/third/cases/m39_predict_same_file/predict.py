import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Passages(Dataset):
    def __init__(self, path):
        self.lines = Path(path).read_text().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        ids = [ord(c) % 256 for c in self.lines[i][:256]]
        return torch.tensor(ids + [0] * (256 - len(ids)))


class PassageModule(pl.LightningDataModule):
    def __init__(self, path, batch_size):
        super().__init__()
        self.path, self.batch_size = path, batch_size

    def setup(self, stage):
        self.passages = Passages(self.path)

    def predict_dataloader(self):
        return DataLoader(self.passages, self.batch_size, num_workers=2)


class QuestionGenerator(pl.LightningModule):
    def __init__(self, dim=256, max_length=48):
        super().__init__()
        self.max_length = max_length
        self.embed = nn.Embedding(256, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, 256)

    def forward(self, ids):
        state = self.encoder(self.embed(ids))[1][0]
        token = torch.full((len(ids),), ord("Q"), device=ids.device)
        out = []
        for _ in range(self.max_length):
            state = self.decoder(self.embed(token), state)
            token = self.head(state).argmax(-1)
            out.append(token)
        return torch.stack(out, dim=1)

    def predict_step(self, batch, batch_idx):
        tokens = self(batch).tolist()
        return {"questions": ["".join(chr(t) if 32 <= t < 127 else "_" for t in row) for row in tokens]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--devices", type=int, default=4)
    args = parser.parse_args()

    pl.seed_everything(0)
    model = QuestionGenerator.load_from_checkpoint(args.checkpoint)
    datamodule = PassageModule(args.input, batch_size=32)
    trainer = pl.Trainer(accelerator="gpu", devices=args.devices, strategy="ddp", logger=False)
    pred_batches = trainer.predict(model, datamodule=datamodule)
    predictions = [p for batch in pred_batches for p in batch["questions"]]

    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    output_path = out / "predictions.txt"
    output_path.write_text("predictions\n" + "\n".join(predictions))
    print(f"{len(predictions)} predictions written to {output_path}")


if __name__ == "__main__":
    main()
