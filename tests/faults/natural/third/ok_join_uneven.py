"""Healthy: the ranks have different numbers of batches and batches of different cost; the Join context makes up for it.

In the style of the tutorial on uneven inputs.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=90

import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def documents(rank, epoch):
    """Rank 2 has few but long documents, rank 0 many short ones."""
    rng = random.Random(10 * epoch + rank)
    for _ in range((60, 25, 9)[rank % 3]):
        yield rng.randint(4, 9) * (1, 3, 8)[rank % 3]


class Scorer(nn.Module):
    def __init__(self, vocab=80, dim=24):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(vocab, dim), nn.GRU(dim, dim, batch_first=True), nn.Linear(dim, 1)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0][:, -1]).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Scorer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        count, total = 0, 0.0
        with Join([model]):
            for length in documents(rank, epoch):
                tokens = torch.randint(0, 80, (8, length))
                time.sleep(length * 0.004)  # reading a document
                loss = nn.functional.mse_loss(model(tokens), tokens.float().mean(1) / 80)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                count, total = count + 1, total + loss.item()
        summary = torch.tensor([total, count])
        dist.all_reduce(summary)
        if rank == 0:
            print(f"epoch {epoch}: loss {summary[0] / summary[1]:.4f} over {int(summary[1])} batches", flush=True)


if __name__ == "__main__":
    main()  # frees the model before its group: in the other order, torch itself may hang (PROC013)
    dist.destroy_process_group()
