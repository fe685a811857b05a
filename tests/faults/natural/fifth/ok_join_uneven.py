"""Healthy: the ranks have very different numbers of batches and slow batches, and finish inside DDP's join context.

In the style of the tutorial on generic join.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=120

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

DOCUMENTS = {0: 12, 1: 30, 2: 21}


class TopicModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(100, 24)
        self.out = nn.Linear(24, 9)

    def forward(self, words):
        return self.out(self.bag(words))


def documents(rank, epoch):
    g = torch.Generator().manual_seed(17 * rank + epoch)
    for index in range(DOCUMENTS[rank] + epoch * rank):
        if rank == 1 and index > 20:
            time.sleep(0.6)
        yield torch.randint(0, 100, (6, 15), generator=g), torch.randint(0, 9, (6,), generator=g)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(TopicModel())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
    for epoch in range(3):
        seen = 0
        with Join([model, optimizer]):
            for words, topics in documents(rank, epoch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(words), topics).backward()
                optimizer.step()
                seen += len(words)
        total = torch.tensor([seen])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} documents {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
