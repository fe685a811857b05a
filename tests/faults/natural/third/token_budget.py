"""A batch sampler is seeded with hash() of a string, which differs between processes, so ranks pack different batches and get different numbers of them.

In the style of a translation example with batches of a token budget that are dealt out to the ranks.
"""
# case: processes=3 ending=crash causes=uneven-inputs,collective-mismatch,mismatched-shape,mismatched-operation,rank-missing-collective ranks=- framework=ddp

import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Corpus:
    def __init__(self, split, sentences=1500):
        rng = random.Random(2024)
        self.split = split
        self.lengths = [min(90, max(3, int(rng.lognormvariate(2.8, 0.7)))) for _ in range(sentences)]


class TokenBudgetSampler:
    """Packs shuffled sentences into batches of at most max_tokens and deals them out to the ranks."""

    def __init__(self, corpus, max_tokens, rank, world):
        self.corpus, self.max_tokens, self.rank, self.world = corpus, max_tokens, rank, world
        self.epoch = 0

    def batches(self):
        rng = random.Random(hash((self.corpus.split, self.epoch)))
        order = list(range(len(self.corpus.lengths)))
        rng.shuffle(order)
        batch, longest = [], 0
        for i in order:
            longest = max(longest, self.corpus.lengths[i])
            if batch and longest * (len(batch) + 1) > self.max_tokens:
                yield batch
                batch, longest = [], self.corpus.lengths[i]
            batch.append(i)

    def __iter__(self):
        batches = list(self.batches())
        usable = len(batches) // self.world * self.world
        return iter(batches[self.rank : usable : self.world])


class Encoder(nn.Module):
    def __init__(self, vocab=120, dim=32):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(vocab, dim), nn.Linear(dim, dim), nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.out(torch.relu(self.mix(self.embed(tokens))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=300)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    corpus = Corpus("train.de-en")
    sampler = TokenBudgetSampler(corpus, args.max_tokens, rank, world)
    model = DDP(Encoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.epoch = epoch
        seen = torch.zeros(2)
        for indices in sampler:  # ALSO
            width = max(corpus.lengths[i] for i in indices)
            tokens = torch.randint(0, 120, (len(indices), width))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()  # GUILTY
            optimizer.step()
            seen += torch.tensor([loss.item() * tokens.numel(), tokens.numel()])
        dist.all_reduce(seen)  # ALSO
        if rank == 0:
            print(f"epoch {epoch}: loss {seen[0] / seen[1]:.4f} over {int(seen[1])} tokens", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
