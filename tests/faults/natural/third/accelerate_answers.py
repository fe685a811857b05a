"""The predictions are filtered by their labels before accelerator.gather, so the ranks gather tensors of different lengths.

In the style of a question-answering example of Accelerate; the metric wants answerable questions only.
"""
# case: processes=3 ending=crash causes=mismatched-shape,collective-mismatch ranks=2 framework=accelerate

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    def __init__(self, dim=24, positions=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.span = nn.Linear(64, positions)

    def forward(self, x):
        return self.span(self.encoder(x))


def build(n, seed, unanswerable=()):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    y = x[:, :16].argmax(1)
    for i in unanswerable:
        y[i] = -1
    return TensorDataset(x, y)


def evaluate(accelerator, model, loader):
    model.eval()
    hits = total = 0
    for x, y in loader:
        with torch.no_grad():
            predictions = model(x).argmax(-1)
        answerable = y >= 0
        predictions, references = predictions[answerable], y[answerable]
        predictions = accelerator.gather(predictions)  # GUILTY
        references = accelerator.gather(references)  # ALSO
        hits += (predictions == references).sum().item()
        total += references.numel()
    return hits / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(42)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train_loader = DataLoader(build(480, 1), batch_size=16, shuffle=True)
    eval_loader = DataLoader(build(192, 2, unanswerable=(83, 85, 91)), batch_size=16)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        score = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f} exact match {score:.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
