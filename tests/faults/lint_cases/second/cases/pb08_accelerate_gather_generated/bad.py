"""Supervised fine-tuning of a seq2seq summariser with Accelerate, ROUGE-like evaluation by generation."""
import argparse
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

VOCAB, PAD, BOS, EOS = 41, 0, 1, 2


class Articles(Dataset):
    """A document and its summary: the first few tokens of the document that are even."""

    def __init__(self, size, seed):
        gen = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(size):
            doc = torch.randint(3, VOCAB, (24,), generator=gen)
            keep = int(torch.randint(2, 9, (1,), generator=gen))
            self.rows.append((doc, doc[doc % 2 == 0][:keep]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    docs = torch.stack([d for d, _ in rows])
    target = torch.full((len(rows), 12), PAD)
    for i, (_, summary) in enumerate(rows):
        line = [BOS, *summary.tolist(), EOS]
        target[i, : len(line)] = torch.tensor(line)
    return {"docs": docs, "target": target}


class Summariser(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, docs, target):
        _, state = self.encoder(self.embed(docs))
        return self.head(self.decoder(self.embed(target), state)[0])

    @torch.no_grad()
    def generate(self, docs, limit=16):
        _, state = self.encoder(self.embed(docs))
        token = torch.full((len(docs), 1), BOS, device=docs.device)
        produced, open_rows = [], torch.ones(len(docs), dtype=torch.bool, device=docs.device)
        for _ in range(limit):
            hidden, state = self.decoder(self.embed(token), state)
            token = self.head(hidden).argmax(-1)
            token[~open_rows] = PAD
            produced.append(token)
            open_rows &= token[:, 0] != EOS
            if not open_rows.any():
                break
        return torch.cat(produced, dim=1)  # RELATED: source


def overlap(hyp, ref):
    hyp, ref = (Counter(t for t in row if t > EOS) for row in (hyp, ref))
    return 2 * sum((hyp & ref).values()) / max(1, sum(hyp.values()) + sum(ref.values()))


class GenerationEval:
    def __init__(self, accelerator, loader):
        self.accelerator, self.loader = accelerator, loader

    def _gather(self, tokens, labels):
        return self.accelerator.gather_for_metrics((tokens, labels))  # EXPECT: mismatched-args

    def _pairs(self, model):
        for batch in self.loader:
            tokens = self.accelerator.unwrap_model(model).generate(batch["docs"])
            hyps, refs = self._gather(tokens, batch["target"])
            yield from zip(hyps.tolist(), refs.tolist())

    def __call__(self, model):
        model.eval()
        scores = [overlap(h, r) for h, r in self._pairs(model)]
        model.train()
        return sum(scores) / len(scores)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=4e-3)
    args = parser.parse_args()
    accelerator = Accelerator()
    set_seed(17)
    train = DataLoader(Articles(256, 1), batch_size=8, shuffle=True, collate_fn=collate)
    dev = DataLoader(Articles(64, 2), batch_size=4, collate_fn=collate)
    model = Summariser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, train, dev = accelerator.prepare(model, optimizer, train, dev)
    evaluate = GenerationEval(accelerator, dev)
    for epoch in range(args.epochs):
        for batch in train:
            logits = model(batch["docs"], batch["target"][:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["target"][:, 1:].flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        score = evaluate(model)
        accelerator.print(f"epoch {epoch} overlap {score:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
