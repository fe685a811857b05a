"""A bucket sampler draws until its batch is full, but the shard of one rank has too few examples below the length of the curriculum stage.

In the style of a sequence model with a length curriculum: the permitted length grows from stage to stage.
"""
# case: processes=3 ending=hang causes=rank-missing-collective,computing-long ranks=2 framework=ddp

import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Shard:
    def __init__(self, rank, size=400):
        rng = random.Random(100 + rank)
        typical = (30, 30, 70)[rank % 3]  # rank 2 got the book chapters
        self.lengths = [max(4, int(rng.gauss(typical, 14))) for _ in range(size)]
        self.rng = rng


class CurriculumSampler:
    """Batches of distinct examples that are not longer than the current stage permits."""

    def __init__(self, shard, batch_size, start=80, end=120, stages=8):
        self.shard, self.batch_size = shard, batch_size
        self.limits = [start + (end - start) * s // (stages - 1) for s in range(stages)]
        self.limits[3] = 34  # a short stage consolidates what was learned

    def batch(self, stage):
        chosen = set()
        while len(chosen) < self.batch_size:  # ALSO
            i = self.shard.rng.randrange(len(self.shard.lengths))  # ALSO
            if self.shard.lengths[i] <= self.limits[stage]:  # GUILTY
                chosen.add(i)  # ALSO
        return [self.shard.lengths[i] for i in chosen]


class Tagger(nn.Module):
    def __init__(self, vocab=50, dim=24, tags=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, tags)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def collate(lengths):
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, n in enumerate(lengths):
        tokens[row, :n] = torch.randint(1, 50, (n,))
    return tokens, tokens % 6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-per-stage", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    sampler = CurriculumSampler(Shard(rank), args.batch_size)
    model = DDP(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for stage, limit in enumerate(sampler.limits):
        for _ in range(args.steps_per_stage):
            lengths = sampler.batch(stage)  # ALSO
            tokens, tags = collate(lengths)
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"stage {stage} (length <= {limit}) loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
