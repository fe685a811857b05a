"""Language-model pretraining on a mixture of domains, with mixture weights that follow the losses."""
import os
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

DOMAINS = {"web": (0, 40), "code": (20, 60), "books": (10, 30), "papers": (50, 64)}
VOCAB, LENGTH = 64, 24


class DomainMixture:
    """Draws whole batches from one domain at a time, by the current weights."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.weights = {name: 1.0 / len(DOMAINS) for name in DOMAINS}

    def draw(self, batch=4):
        names = list(self.weights)
        probs = torch.tensor([self.weights[n] for n in names])
        name = names[int(torch.multinomial(probs, 1, generator=self.gen))]
        low, high = DOMAINS[name]
        return name, torch.randint(low, high, (batch, LENGTH + 1), generator=self.gen)

    def stream(self, steps):
        for _ in range(steps):
            yield self.draw()

    def reweigh(self, losses, temperature=2.0):
        names = list(DOMAINS)
        probs = torch.tensor([losses.get(n, 0.0) for n in names]).div(temperature).softmax(0)
        self.weights = dict(zip(names, probs.tolist()))


class TinyLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class RunningMean:
    def __init__(self, device):
        self.pair = torch.zeros(2, device=device)

    def add(self, value):
        self.pair += torch.stack([value.detach(), torch.ones_like(value)])

    def global_value(self):
        pair = self.pair.clone()
        dist.all_reduce(pair)  # RELATED: hidden-collective
        return (pair[0] / pair[1].clamp(min=1)).item()


class DomainLosses:
    def __init__(self, device):
        self.device = device
        self.reset()

    def reset(self):
        self.means = defaultdict(lambda: RunningMean(self.device))

    def add(self, name, loss):
        self.means[name].add(loss)  # RELATED: source

    def summary(self):
        return {name: mean.global_value() for name, mean in self.means.items()}  # EXPECT: order-divergence


class Pretrainer:
    def __init__(self, device, rank):
        self.device = device
        self.model = DDP(TinyLM().to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.mixture = DomainMixture(seed=600 + rank)
        self.losses = DomainLosses(device)

    def step(self, name, tokens):
        tokens = tokens.to(self.device)
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.add(name, loss)

    def round(self, steps=40):
        for name, tokens in self.mixture.stream(steps):
            self.step(name, tokens)
        summary = self.losses.summary()
        self.mixture.reweigh(summary)
        self.losses.reset()
        return summary


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    trainer = Pretrainer(device, rank)
    for r in range(4):
        summary = trainer.round()
        text = " ".join(f"{name}={loss:.3f}" for name, loss in sorted(summary.items()))
        print(f"[rank {rank}] round {r}: {text}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
