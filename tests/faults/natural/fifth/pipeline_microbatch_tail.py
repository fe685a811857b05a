"""The last batch is smaller: the first stage cuts it into fewer micro-batches than the later stages expect, which wait for one more.

Modelled on home-made GPipe schedules in torch.distributed tutorials.
"""
# case: processes=3 ending=hang causes=p2p-without-partner,rank-missing-collective,rank-exits-early,uneven-inputs,rank-skips-collective,mismatched-operation,collective-mismatch ranks=- framework=torch.distributed

import math

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH, MICRO, SAMPLES = 24, 32, 8, 232


class Stage(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        layers = [nn.Linear(10, WIDTH) if first else nn.Linear(WIDTH, WIDTH), nn.Tanh()]
        if last:
            layers.append(nn.Linear(WIDTH, 3))
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


class Pipeline:
    """All forward passes, then all backward passes."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.first, self.last = rank == 0, rank == world - 1
        self.stage = Stage(self.first, self.last)
        self.optimizer = torch.optim.SGD(self.stage.parameters(), lr=0.05)

    def forward(self, micro):
        if not self.first:
            micro = torch.empty(MICRO, WIDTH)
            dist.recv(micro, src=self.rank - 1)  # ALSO
            micro.requires_grad_()
        out = self.stage(micro)
        if not self.last:
            dist.send(out.detach(), dst=self.rank + 1)
        return micro, out

    def backward(self, micro, out, target):
        if self.last:
            loss = nn.functional.cross_entropy(out, target)
            loss.backward()
            dist.send(micro.grad, dst=self.rank - 1)
            return loss.item()
        grad = torch.empty_like(out)
        dist.recv(grad, src=self.rank + 1)  # ALSO
        out.backward(grad)
        if not self.first:
            dist.send(micro.grad, dst=self.rank - 1)
        return 0.0

    def step(self, batch, targets):
        if self.first:
            micros = list(batch.split(MICRO))  # ALSO
        else:
            micros = [None] * math.ceil(BATCH / MICRO)  # GUILTY
        saved = [self.forward(micro) for micro in micros]  # ALSO
        labels = targets.split(MICRO) if self.last else [None] * len(saved)
        loss = sum(self.backward(*pair, target) for pair, target in zip(saved, labels))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss / len(saved)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    pipeline = Pipeline(rank, world)
    g = torch.Generator().manual_seed(5)
    data, labels = torch.randn(SAMPLES, 10, generator=g), torch.randint(0, 3, (SAMPLES,), generator=g)
    for epoch in range(3):
        for x, y in zip(data.split(BATCH), labels.split(BATCH)):
            loss = pipeline.step(x, y)  # ALSO
        if pipeline.last:
            print(f"epoch {epoch} loss {loss:.3f}", flush=True)
        dist.barrier()  # ALSO
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
