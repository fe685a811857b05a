"""Owners broadcast their updated parameters in the order of a set of names, which differs between processes with random string hashes.

Modelled on home-made sharded optimizers (order of a set of strings, PYTHONHASHSEED).
"""
# case: processes=3 ending=hang causes=collective-order-inversion,mismatched-shape,collective-mismatch,mismatched-operation,silent-corruption-by-misaligned-collectives ranks=- framework=torch.distributed

import torch
import torch.distributed as dist
from torch import nn


class ShardedAdam:
    """Each rank keeps the moments of a third of the parameters."""

    def __init__(self, model, frozen=(), lr=1e-3):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.params = dict(model.named_parameters())
        self.names = set(self.params) - set(frozen)  # GUILTY
        self.owner = {name: i % self.world for i, name in enumerate(sorted(self.names))}
        mine = [self.params[name] for name in sorted(self.names) if self.owner[name] == self.rank]
        self.inner = torch.optim.Adam(mine, lr=lr)

    def reduce_gradients(self):
        for name in sorted(self.names):
            dist.all_reduce(self.params[name].grad)
            self.params[name].grad /= self.world

    def step(self):
        self.reduce_gradients()
        self.inner.step()
        for name in self.names:  # ALSO
            dist.broadcast(self.params[name].data, src=self.owner[name])  # ALSO

    def zero_grad(self):
        for p in self.params.values():
            p.grad = None


class ImageTextModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32))
        self.text = nn.Sequential(nn.Linear(30, 40), nn.GELU(), nn.Linear(40, 32))
        self.image_norm = nn.LayerNorm(32)
        self.text_norm = nn.LayerNorm(32)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        image = nn.functional.normalize(self.image_norm(self.image(image)), dim=-1)
        text = nn.functional.normalize(self.text_norm(self.text(text)), dim=-1)
        return self.scale.exp() * image @ text.T


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = ImageTextModel()
    optimizer = ShardedAdam(model, frozen=["scale"])
    g = torch.Generator().manual_seed(rank)
    for step in range(60):
        image = torch.randn(12, 48, generator=g)
        logits = model(image, image[:, :30])
        loss = nn.functional.cross_entropy(logits, torch.arange(12))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # ALSO
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()  # ALSO
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
