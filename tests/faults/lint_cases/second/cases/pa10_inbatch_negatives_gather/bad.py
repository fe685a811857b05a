"""Session recommender trained with cross-rank in-batch negatives."""
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class TrainArgs:
    dim: int = 24
    items: int = 300
    history: int = 8
    batch: int = 32
    epochs: int = 2
    temperature: float = 0.07
    min_dwell: float = 0.3


class Sessions(Dataset):
    def __init__(self, args, n=512, seed=21):
        g = torch.Generator().manual_seed(seed)
        self.history = torch.randint(0, args.items, (n, args.history), generator=g)
        self.next_item = (self.history[:, -1] + torch.randint(0, 5, (n,), generator=g)) % args.items
        self.dwell = torch.rand(n, generator=g)

    def __len__(self):
        return len(self.dwell)

    def __getitem__(self, i):
        return self.history[i], self.next_item[i], self.dwell[i]


@torch.no_grad()
def concat_all_gather(tensor):
    """Gather `tensor` of all ranks along dim 0 (no gradient)."""
    out = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(out, tensor.contiguous())  # EXPECT: mismatched-args
    return torch.cat(out)


class SessionEncoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.items = nn.Embedding(args.items, args.dim)
        self.gru = nn.GRU(args.dim, args.dim, batch_first=True)
        self.proj = nn.Linear(args.dim, args.dim)

    def forward(self, history, next_item):
        _, h = self.gru(self.items(history))
        return F.normalize(self.proj(h[-1]), dim=-1), F.normalize(self.items(next_item), dim=-1)


class NegativePool:
    """Keys of the other ranks' batches, as extra negatives."""

    def __init__(self, rank):
        self.rank = rank

    def collect(self, keys):
        return concat_all_gather(keys.detach())

    def logits(self, queries, keys, temperature):
        pool = self.collect(keys)
        start = self.rank * len(keys)
        keep = torch.ones(len(pool), dtype=torch.bool)
        keep[start:start + len(keys)] = False
        return torch.cat([queries @ keys.t(), queries @ pool[keep].t()], dim=1) / temperature


class Recommender:
    def __init__(self, args):
        self.args = args
        self.net = DDP(SessionEncoder(args))
        self.pool = NegativePool(dist.get_rank())
        self.optim = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def loss(self, history, next_item, dwell):
        queries, keys = self.net(history, next_item)
        engaged = dwell > self.args.min_dwell
        queries, keys = queries[engaged], keys[engaged]  # RELATED: source
        logits = self.pool.logits(queries, keys, self.args.temperature)
        return F.cross_entropy(logits, torch.arange(len(queries)))

    def fit(self, loader):
        for epoch in range(self.args.epochs):
            loader.sampler.set_epoch(epoch)
            for batch in loader:
                loss = self.loss(*batch)
                self.optim.zero_grad(set_to_none=True)
                loss.backward()
                self.optim.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    args = TrainArgs()
    data = Sessions(args)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    Recommender(args).fit(loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
