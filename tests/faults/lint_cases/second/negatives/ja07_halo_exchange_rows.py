"""Spatially parallel segmentation: image rows are divided over ranks, halo rows are exchanged."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class RowHalo(torch.autograd.Function):
    """Pads a horizontal slab with one row of each neighbour (zeros at the border)."""

    @staticmethod
    def forward(ctx, slab, link):
        ctx.link = link
        above, below = link.swap(slab[:, :, :1].contiguous(), slab[:, :, -1:].contiguous())
        return torch.cat([above, slab, below], dim=2)

    @staticmethod
    def backward(ctx, grad):
        to_above, to_below = grad[:, :, :1].contiguous(), grad[:, :, -1:].contiguous()
        inner = grad[:, :, 1:-1].clone()
        from_above, from_below = ctx.link.swap(to_above, to_below)
        inner[:, :, :1] += from_above
        inner[:, :, -1:] += from_below
        return inner, None


class NeighbourLink:
    def __init__(self, rank, world_size):
        self.rank = rank
        self.up = rank - 1 if rank > 0 else None
        self.down = rank + 1 if rank + 1 < world_size else None

    def _exchange(self, peer, outgoing):
        """Lower rank of a pair sends first, the higher one receives first."""
        incoming = torch.zeros_like(outgoing)
        if peer is None:
            return incoming
        if self.rank < peer:
            dist.send(outgoing, dst=peer)
            dist.recv(incoming, src=peer)
        else:
            dist.recv(incoming, src=peer)
            dist.send(outgoing, dst=peer)
        return incoming

    def swap(self, top_row, bottom_row):
        if self.rank % 2 == 0:
            below = self._exchange(self.down, bottom_row)
            above = self._exchange(self.up, top_row)
        else:
            above = self._exchange(self.up, top_row)
            below = self._exchange(self.down, bottom_row)
        return above, below


class SlabConv(nn.Module):
    def __init__(self, cin, cout, link):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=(0, 1))
        self.link = link

    def forward(self, slab):
        return self.conv(RowHalo.apply(slab, self.link))


class SlabSegmenter(nn.Module):
    def __init__(self, link, w=8):
        super().__init__()
        self.c1, self.c2 = SlabConv(1, w, link), SlabConv(w, w, link)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        return self.out(F.relu(self.c2(F.relu(self.c1(x)))))


def sum_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


class SlabTrainer:
    def __init__(self, rows_per_rank=8):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rows = rows_per_rank
        torch.manual_seed(0)
        self.model = SlabSegmenter(NeighbourLink(self.rank, self.world))
        self.optim = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.gen = torch.Generator().manual_seed(3)

    def my_rows(self, t):
        return t[:, :, self.rank * self.rows:(self.rank + 1) * self.rows]

    def batch(self, n=4, width=16):
        image = torch.randn(n, 1, self.rows * self.world, width, generator=self.gen)
        mask = (F.avg_pool2d(image, 3, 1, 1) > 0.1).float()
        return self.my_rows(image).requires_grad_(True), self.my_rows(mask)

    def step(self):
        image, mask = self.batch()
        logits = self.model(image)
        loss = F.binary_cross_entropy_with_logits(logits, mask) / self.world
        self.optim.zero_grad()
        loss.backward()
        sum_gradients(self.model)
        self.optim.step()
        return loss.item() * self.world


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = SlabTrainer()
    for step in range(15):
        loss = trainer.step()
    print(f"rank {trainer.rank}: loss {loss:.4f} weight {trainer.model.out.weight.sum().item():.5f}", flush=True)
    dist.destroy_process_group()
