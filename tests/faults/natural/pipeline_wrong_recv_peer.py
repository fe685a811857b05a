"""A hand-written pipeline: the last stage receives its activations from stage 1 instead of stage 2."""
# case: processes=4 ending=hang causes=p2p-without-partner ranks=3 framework=pipeline

import torch
import torch.distributed as dist
import torch.nn as nn

DIM, MICRO_BATCH, N_MICRO = 32, 4, 4


class Stage(nn.Module):
    def __init__(self, index, n_stages):
        super().__init__()
        self.index, self.n_stages = index, n_stages
        self.layers = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())

    @property
    def is_first(self):
        return self.index == 0

    @property
    def is_last(self):
        return self.index == self.n_stages - 1

    def prev_rank(self):
        # two stages share a node, so skip the local partner
        return self.index - 1 if self.index % 2 == 0 or self.index < 2 else self.index - 2

    def next_rank(self):
        return self.index + 1


def forward_micro_batch(stage, x):
    if not stage.is_first:
        x = torch.empty(MICRO_BATCH, DIM)
        dist.recv(x, src=stage.prev_rank())  # GUILTY
        x.requires_grad_()
    y = stage.layers(x)
    if not stage.is_last:
        dist.send(y.detach(), dst=stage.next_rank())
    return x, y


def backward_micro_batch(stage, x, y):
    if stage.is_last:
        y.pow(2).mean().backward()
    else:
        grad = torch.empty_like(y)
        dist.recv(grad, src=stage.next_rank())
        y.backward(grad)
    if not stage.is_first:
        dist.send(x.grad, dst=stage.index - 1)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = Stage(rank, world_size)
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-2)
    for step in range(10):
        optimizer.zero_grad()
        done = [forward_micro_batch(stage, torch.randn(MICRO_BATCH, DIM)) for _ in range(N_MICRO)]
        for x, y in done:
            backward_micro_batch(stage, x, y)
        optimizer.step()
        if stage.is_last:
            print(f"step {step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
