"""Digit classifier with Accelerate. After each epoch a list of reporters turns the outcome of the evaluation into rows."""
import csv
import functools
import os
import pathlib
from dataclasses import dataclass, field
from typing import Callable

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

REPORTERS: dict[str, Callable] = {}


def reporter(name):
    def register(fn):
        REPORTERS[name] = fn
        return fn

    return register


@dataclass
class RunConfig:
    classes: int = 4
    width: int = 16
    epochs: int = 2
    batch_size: int = 8
    learning_rate: float = 0.05
    reporters: tuple = ("console", "csv", "confusion")
    folder: pathlib.Path = field(default_factory=lambda: pathlib.Path(os.environ.get("CASE_TMP", ".")) / "digits")


@dataclass
class Outcome:
    """What one pass over the evaluation set leaves behind."""

    epoch: int
    loss: float
    accuracy: float
    predictions: torch.Tensor
    targets: torch.Tensor

    def scalars(self):
        return {"epoch": self.epoch, "loss": round(self.loss, 5), "accuracy": round(self.accuracy, 5)}


@reporter("console")
def to_console(outcome, *, accelerator, config):
    accelerator.print(" | ".join(f"{k} {v}" for k, v in outcome.scalars().items()))


@reporter("csv")
def to_csv(outcome, *, accelerator, config):
    path = config.folder / "eval.csv"
    fresh = not path.exists()
    with path.open("a", newline="") as f:
        writer = csv.DictWriter(f, outcome.scalars().keys())
        if fresh:
            writer.writeheader()
        writer.writerow(outcome.scalars())


@reporter("confusion")
def to_confusion_matrix(outcome, *, accelerator, config):
    pred, target = accelerator.gather_for_metrics((outcome.predictions, outcome.targets))  # EXPECT: rank-guarded-collective
    matrix = torch.zeros(config.classes, config.classes, dtype=torch.long)
    for t, p in zip(target.tolist(), pred.tolist()):
        matrix[t, p] += 1
    torch.save(matrix, config.folder / f"confusion_{outcome.epoch}.pt")


class Experiment:
    def __init__(self, config: RunConfig):
        self.config = config
        self.accelerator = Accelerator(cpu=True)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, config.width), nn.ReLU(), nn.Linear(config.width, config.classes))
        opt = torch.optim.SGD(net.parameters(), lr=config.learning_rate, momentum=0.9)
        self.model, self.opt, self.train_dl, self.eval_dl = self.accelerator.prepare(
            net, opt, self._loader(0, 64, True), self._loader(1, 32, False)
        )
        with self.accelerator.main_process_first():
            config.folder.mkdir(parents=True, exist_ok=True)
        self.reporters = [
            functools.partial(REPORTERS[name], accelerator=self.accelerator, config=config) for name in config.reporters
        ]

    def _loader(self, seed, n, shuffle):
        g = torch.Generator().manual_seed(seed)
        images, labels = torch.randn(n, 8, 8, generator=g), torch.randint(0, self.config.classes, (n,), generator=g)
        return DataLoader(TensorDataset(images, labels), batch_size=self.config.batch_size, shuffle=shuffle)

    def train_epoch(self):
        self.model.train()
        for images, labels in self.train_dl:
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.cross_entropy(self.model(images), labels)
                self.accelerator.backward(loss)
                self.opt.step()
                self.opt.zero_grad()

    @torch.no_grad()
    def evaluate(self, epoch) -> Outcome:
        self.model.eval()
        sums, preds, targets = torch.zeros(3), [], []
        for images, labels in self.eval_dl:
            logits = self.model(images)
            sums += torch.stack([
                nn.functional.cross_entropy(logits, labels, reduction="sum"),
                (logits.argmax(-1) == labels).float().sum(),
                torch.tensor(float(len(labels))),
            ])
            preds.append(logits.argmax(-1))
            targets.append(labels)
        loss, hits, n = self.accelerator.reduce(sums, reduction="sum").tolist()
        return Outcome(epoch, loss / n, hits / n, torch.cat(preds), torch.cat(targets))

    def report(self, outcome: Outcome):
        for emit in self.reporters:
            emit(outcome)

    def fit(self):
        publish = self.accelerator.on_main_process(self.report)  # RELATED: guard
        for epoch in range(self.config.epochs):
            self.train_epoch()
            outcome = self.evaluate(epoch)
            publish(outcome)
            self.accelerator.wait_for_everyone()
        weights = self.accelerator.unwrap_model(self.model).state_dict()
        if self.accelerator.is_main_process:
            torch.save(weights, self.config.folder / "weights.pt")


def main():
    set_seed(5)
    Experiment(RunConfig()).fit()


if __name__ == "__main__":
    main()
