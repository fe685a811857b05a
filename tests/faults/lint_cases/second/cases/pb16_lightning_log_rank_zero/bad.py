"""Instruction tuning of a small decoder with Lightning; validation perplexity and sampled answers."""
import argparse

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

VOCAB, PAD, SEP = 67, 0, 1


class Instructions(Dataset):
    """Prompt, separator, answer; the answer is the prompt reversed."""

    def __init__(self, size, seed):
        gen = torch.Generator().manual_seed(seed)
        self.prompts = torch.randint(2, VOCAB, (size, 8), generator=gen)

    def __len__(self):
        return len(self.prompts)

    def __getitem__(self, i):
        prompt = self.prompts[i]
        return torch.cat([prompt, torch.tensor([SEP]), prompt.flip(0)])


class Decoder(nn.Module):
    def __init__(self, dim=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.place = nn.Embedding(32, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.body(x, mask=mask, is_causal=True))


class LoggingMixin:
    """Names every metric after its stage and averages it over processes."""

    def log_stage(self, stage, **values):
        for name, value in values.items():
            self.log(f"{stage}/{name}", value, sync_dist=True, prog_bar=name == "loss")  # RELATED: hidden-collective


class InstructionTuner(LoggingMixin, pl.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = Decoder()
        self.answers = []

    def answer_loss(self, ids):
        logits = self.model(ids[:, :-1])[:, 8:]
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 9:].flatten())

    def training_step(self, ids, _):
        return self.answer_loss(ids)

    @torch.no_grad()
    def complete(self, prompts):
        ids = prompts
        for _ in range(8):
            ids = torch.cat([ids, self.model(ids)[:, -1:].argmax(-1)], dim=1)
        return ids[:, prompts.shape[1]:]

    def validation_step(self, ids, batch_idx):
        self.log_stage("val", loss=self.answer_loss(ids))
        if batch_idx < 2:
            hits = (self.complete(ids[:, :9]) == ids[:, 9:]).float().mean()
            self.answers.append(hits)

    def report_answers(self):
        exact = torch.stack(self.answers).mean()
        self.log_stage("answers", exact=exact)
        print(f"epoch {self.current_epoch} exact on rank 0's share {exact.item():.3f}", flush=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:  # RELATED: guard
            self.report_answers()  # EXPECT: rank-guarded-collective
        self.answers.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class InstructionData(pl.LightningDataModule):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def setup(self, stage):
        self.train_set, self.val_set = Instructions(512, 1), Instructions(128, 2)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    pl.seed_everything(3)
    keep = ModelCheckpoint(monitor="val/loss", mode="min", save_top_k=1, auto_insert_metric_name=False)
    trainer = pl.Trainer(
        accelerator="auto", strategy="ddp", devices=args.devices, max_epochs=args.epochs, callbacks=[keep]
    )
    trainer.fit(InstructionTuner(), datamodule=InstructionData(args.batch))


if __name__ == "__main__":
    main()
