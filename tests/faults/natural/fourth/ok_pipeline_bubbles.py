"""Healthy: a hand-written pipeline of three stages, whose last stage needs 12 s for its first micro-batch and whose first one pauses later.

In the style of GPipe examples with send and recv; the stages wait for each other in point-to-point operations most of the time.
"""
# case: processes=3 ending=well causes=- ranks=- framework=torch.distributed limit_s=120

import time

import torch
import torch.distributed as dist
from torch import nn

MICRO, BATCH, DIM, STEPS = 4, 8, 24, 6


class Stage:
    """One stage; activations go to the next rank, gradients to the one before."""

    def __init__(self, rank, world):
        torch.manual_seed(rank)
        self.rank, self.world = rank, world
        self.net = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.first, self.last = rank == 0, rank == world - 1
        self.warm = False

    def _warm_up(self):
        """The fused loss kernel of the last stage is built when it is used first."""
        if self.last and not self.warm:
            time.sleep(12)
            self.warm = True

    def forward(self, x):
        if not self.first:
            x = torch.empty(BATCH, DIM)
            dist.recv(x, src=self.rank - 1)
            x.requires_grad_(True)
        y = self.net(x)
        if not self.last:
            dist.send(y.detach(), dst=self.rank + 1)
        return x, y

    def backward(self, x, y, target):
        if self.last:
            self._warm_up()
            loss = nn.functional.mse_loss(y, target)
            loss.backward()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=self.rank + 1)
            y.backward(gradient)
            loss = torch.zeros(())
        if not self.first:
            dist.send(x.grad, dst=self.rank - 1)
        return loss.item()


def load_micro_batches(step, rank):
    """Return the micro-batches of a step; the loader of the first stage refills its buffer once."""
    if rank == 0 and step == 3:
        time.sleep(10)
    g = torch.Generator().manual_seed(step)
    return [torch.randn(BATCH, DIM, generator=g) for _ in range(MICRO)]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world)
    for step in range(STEPS):
        micro_batches = load_micro_batches(step, rank)
        stage.optimizer.zero_grad()
        flight = [stage.forward(x) for x in micro_batches]
        losses = [stage.backward(x, y, target.sin()) for (x, y), target in zip(flight, micro_batches, strict=True)]
        stage.optimizer.step()
        if stage.last:
            print(f"step {step} loss {sum(losses) / MICRO:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
