"""Sequence-to-sequence copy task; gradients normalised by the number of tokens."""
import logging
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from comm import GradientAverager, make_communicator

PAD = 0


class CopyModel(nn.Module):
    def __init__(self, vocab=64, dim=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.out = nn.Linear(dim, vocab)

    def forward(self, src):
        h = self.emb(src)
        return self.out(h + self.ff(h))


class Batches:
    """Sentences of varying length, different ones on every worker."""

    def __init__(self, seed, vocab=64, size=8, max_len=12):
        self.gen = torch.Generator().manual_seed(seed)
        self.vocab, self.size, self.max_len = vocab, size, max_len

    def __iter__(self):
        while True:
            src = torch.randint(1, self.vocab, (self.size, self.max_len), generator=self.gen)
            lens = torch.randint(3, self.max_len + 1, (self.size, 1), generator=self.gen)
            yield src.masked_fill(torch.arange(self.max_len) >= lens, PAD)


class Statistics:
    def __init__(self):
        self.loss = self.tokens = 0.0

    def update(self, loss, tokens):
        self.loss += loss
        self.tokens += tokens

    def synchronized(self, comm):
        both = torch.tensor([self.loss, self.tokens], dtype=torch.float64)
        comm.sum_(both)
        return (both[0] / both[1]).item()


class Trainer:
    def __init__(self, model, comm, lr=0.2, report_every=10):
        self.model, self.comm = model, comm
        self.params = [p for p in model.parameters()]
        self.average = GradientAverager(comm)
        self.optim = torch.optim.SGD(self.params, lr=lr)
        self.report_every = report_every
        comm.broadcast_([p.data for p in self.params])

    def gradients(self, src):
        logits = self.model(src)
        loss = F.cross_entropy(logits.flatten(0, 1), src.flatten(), ignore_index=PAD, reduction="sum")
        loss.backward()
        return loss.item(), int(src.ne(PAD).sum())

    def train(self, batches, steps):
        stats = Statistics()
        for step, src in zip(range(1, steps + 1), batches):
            self.optim.zero_grad(set_to_none=True)
            loss, tokens = self.gradients(src)
            stats.update(loss, tokens)
            total = torch.tensor([float(tokens)])
            self.comm.sum_(total)
            self.average(self.params, total.item())
            self.optim.step()
            if step % self.report_every == 0:
                value = stats.synchronized(self.comm)
                if self.comm.rank == 0:
                    logging.info("step %d xent %.3f", step, value)
                stats = Statistics()

    def drift(self):
        """Largest distance of a parameter sum from the mean over the workers."""
        sums = torch.stack([p.detach().double().sum() for p in self.params])
        mean = sums.clone()
        self.comm.sum_(mean)
        return (sums - mean / self.comm.world_size).abs().max().item()


def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    dist.init_process_group("gloo")
    comm = make_communicator()
    trainer = Trainer(CopyModel(), comm)
    trainer.train(Batches(seed=comm.rank), steps=20)
    logging.info("rank %d drift %.3g", comm.rank, trainer.drift())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
