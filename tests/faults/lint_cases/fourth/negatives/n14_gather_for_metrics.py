import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm


class Accuracy:
    def __init__(self):
        self.hits = self.total = 0

    def update(self, predictions, references):
        self.hits += (predictions == references).sum().item()
        self.total += references.numel()

    def compute(self):
        return self.hits / max(self.total, 1)


class Experiment:
    def __init__(self, args):
        self.args = args
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        set_seed(args.seed)
        net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 10))
        train = TensorDataset(*torch.load(args.train))
        test = TensorDataset(*torch.load(args.test))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        self.model, self.optimizer, self.train_loader, self.test_loader = self.accelerator.prepare(
            net, optimizer, DataLoader(train, args.batch, shuffle=True), DataLoader(test, 2 * args.batch)
        )
        self.best = 0.0

    def evaluate(self):
        self.model.eval()
        metric = Accuracy()
        for x, y in self.test_loader:
            with torch.no_grad():
                logits = self.model(x)
            metric.update(*self.accelerator.gather_for_metrics((logits.argmax(-1), y)))
        self.model.train()
        return metric.compute()

    def keep(self, accuracy):
        if accuracy <= self.best:
            return
        self.best = accuracy
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            state = self.accelerator.unwrap_model(self.model).state_dict()
            self.accelerator.save(state, "best.pt")

    def run(self):
        progress = tqdm(total=self.args.epochs, disable=not self.accelerator.is_main_process)
        for epoch in range(self.args.epochs):
            for x, y in self.train_loader:
                with self.accelerator.accumulate(self.model):
                    loss = nn.functional.cross_entropy(self.model(x), y)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            accuracy = self.evaluate()
            self.keep(accuracy)
            progress.update()
            progress.set_postfix(accuracy=accuracy)
        self.accelerator.print(f"best {self.best:.4f}")
        self.accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default="train.pt")
    parser.add_argument("--test", default="test.pt")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    Experiment(parser.parse_args()).run()
