"""Healthy: ranks have very different numbers of batches, but train inside DDP's Join context, which shadows their collectives.

In the style of PyTorch's tutorial on uneven inputs with the Join context manager.
"""
# case: processes=4 ending=well causes=- ranks=- framework=ddp limit_s=90

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

BATCHES = (4, 40, 12, 100)


def batches(rank):
    """Documents of very different lengths: the work per batch differs by a factor of a hundred."""
    g = torch.Generator().manual_seed(rank)
    for i in range(BATCHES[rank % len(BATCHES)]):
        length = 5000 if i % 10 == rank else 50
        yield torch.randn(length, 64, generator=g), torch.randn(length, 1, generator=g)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    seen = 0
    with Join([model]):
        for x, y in batches(rank):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
            time.sleep(0.2)
            if rank == 3 and seen % 7 == 0:
                print(f"rank {rank}: {seen} samples, loss {loss.item():.4f}", flush=True)

    total = torch.tensor([seen])
    dist.all_reduce(total)
    if rank == 0:
        print(f"trained on {total.item()} samples", flush=True)
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
