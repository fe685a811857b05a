"""The prefetch thread of one rank dies with an exception, and the main thread waits in queue.get() forever."""
# case: processes=3 ending=hang causes=rank-missing-collective,stalled-outside-collectives,python-exception-on-one-rank ranks=1 framework=ddp

import queue
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TokenFile:
    """Tokens of one shard; the index lists where documents begin."""

    def __init__(self, rank):
        g = torch.Generator().manual_seed(rank)
        self.tokens = torch.randint(0, 64, (4096,), generator=g)
        self.index = list(range(0, 4064, 32))
        if rank == 1:
            self.index[40] = 4090  # the index belongs to a longer file

    def read(self, i):
        start = self.index[i % len(self.index)]
        return self.tokens[start : start + 33].view(3, 11)  # ALSO


class Prefetcher:
    def __init__(self, source, depth=2):
        self.source = source
        self.queue = queue.Queue(maxsize=depth)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        i = 0
        while True:
            batch = torch.stack([self.source.read(i + k) for k in range(4)])
            self.queue.put(batch.flatten(0, 1))
            i += 4

    def next(self):
        return self.queue.get()  # GUILTY


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    prefetcher = Prefetcher(TokenFile(rank))
    model = DDP(nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(60):
        batch = prefetcher.next()  # ALSO
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} | loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
