"""Two-tower retrieval: every rank reads its own day files and gradients are averaged by hand."""
import itertools
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DAYS = ["2024-03-01", "2024-03-02", "2024-03-03", "2024-03-04", "2024-03-05"]


class DayFile:
    """Interactions of one day; in production a parquet file."""

    def __init__(self, day):
        self.day = day
        self.gen = torch.Generator().manual_seed(int(day.replace("-", "")))
        self.num_rows = 300 + 70 * int(day[-2:])

    def rows(self):
        users = torch.randint(0, 500, (self.num_rows,), generator=self.gen)
        items = (users * 7 + torch.randint(0, 20, (self.num_rows,), generator=self.gen)) % 800
        return users, items


class InteractionReader:
    def __init__(self, days, rank, world_size, batch_size):
        self.files = [DayFile(d) for d in days[rank::world_size]]  # RELATED: source
        self.batch_size = batch_size

    def __len__(self):
        return sum(math.ceil(f.num_rows / self.batch_size) for f in self.files)

    def __iter__(self):
        for f in self.files:
            users, items = f.rows()
            for lo in range(0, f.num_rows, self.batch_size):
                yield users[lo:lo + self.batch_size], items[lo:lo + self.batch_size]


class TwoTower(nn.Module):
    def __init__(self, n_users=500, n_items=800, dim=32):
        super().__init__()
        self.user = nn.Sequential(nn.Embedding(n_users, dim), nn.Linear(dim, dim))
        self.item = nn.Sequential(nn.Embedding(n_items, dim), nn.Linear(dim, dim))
        self.log_temp = nn.Parameter(torch.tensor(math.log(20.0)))

    def forward(self, users, items):
        u, v = F.normalize(self.user(users), dim=-1), F.normalize(self.item(items), dim=-1)
        return u @ v.t() * self.log_temp.exp()


class GradientAverager:
    def __init__(self, module):
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.world_size = dist.get_world_size()
        for t in itertools.chain(module.parameters(), module.buffers()):
            dist.broadcast(t.data, src=0)

    def __call__(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.params])
        dist.all_reduce(flat)  # RELATED: hidden-collective
        flat /= self.world_size
        for p, g in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad.copy_(g.view_as(p))


class RetrievalTrainer:
    def __init__(self, model, reader, lr=3e-3):
        self.model, self.reader = model, reader
        self.average = GradientAverager(model)
        self.optim = torch.optim.Adam(model.parameters(), lr=lr)

    def train_batch(self, users, items):
        logits = self.model(users, items)
        loss = F.cross_entropy(logits, torch.arange(len(users)))
        self.optim.zero_grad()
        loss.backward()
        self.average()
        self.optim.step()
        return loss.item()

    def run_epoch(self):
        total, seen = 0.0, 0
        for users, items in self.reader:  # EXPECT: uneven-loop
            total += self.train_batch(users, items)
            seen += 1
        return total / max(seen, 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    reader = InteractionReader(DAYS, rank, world, int(os.environ.get("BATCH", 128)))
    trainer = RetrievalTrainer(TwoTower(), reader)
    for epoch in range(2):
        loss = trainer.run_epoch()
        print(f"rank {rank} epoch {epoch} loss {loss:.4f} ({len(reader)} local batches)", flush=True)
    dist.barrier()
    if rank == 0:
        torch.save(trainer.model.state_dict(), os.devnull)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
