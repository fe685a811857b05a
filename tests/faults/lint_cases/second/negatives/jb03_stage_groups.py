"""Pipeline of two stages with data-parallel replicas; the loss is averaged inside the last stage."""
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CLASSES, FEATURES, WIDTH = 6, 20, 32


@dataclass
class Mesh:
    stages: int = 2
    groups: dict = field(default_factory=dict)

    def __post_init__(self):
        self.rank, world = dist.get_rank(), dist.get_world_size()
        assert world % self.stages == 0
        self.replicas = world // self.stages
        self.stage, self.replica = divmod(self.rank, self.replicas)
        for stage in range(self.stages):
            self.groups["stage", stage] = dist.new_group([stage * self.replicas + r for r in range(self.replicas)])
        for replica in range(self.replicas):
            self.groups["pipe", replica] = dist.new_group([s * self.replicas + replica for s in range(self.stages)])

    @property
    def stage_group(self):
        return self.groups["stage", self.stage]

    @property
    def pipe_group(self):
        return self.groups["pipe", self.replica]

    @property
    def last(self):
        return self.stage == self.stages - 1

    def rank_at(self, stage):
        return stage * self.replicas + self.replica


class LossBoard:
    """Mean loss over the replicas of the last stage; known on that stage alone."""

    def __init__(self, mesh):
        self.mesh, self.history = mesh, []

    def _average(self, loss):
        value = loss.detach().clone()
        dist.all_reduce(value, group=self.mesh.stage_group)
        return (value / self.mesh.replicas).item()

    def post(self, loss):
        self.history.append(self._average(loss))


class Stage:
    def __init__(self, mesh, device):
        self.mesh, self.device = mesh, device
        torch.manual_seed(10 + mesh.stage)
        sizes = (FEATURES, WIDTH, WIDTH) if mesh.stage == 0 else (WIDTH, WIDTH, CLASSES)
        self.net = nn.Sequential(nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:])).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.board = LossBoard(mesh)

    def _front(self, x):
        hidden = self.net(x)
        dist.send(hidden.detach(), self.mesh.rank_at(1))
        grad = torch.empty_like(hidden)
        dist.recv(grad, self.mesh.rank_at(1))
        hidden.backward(grad)

    def _back(self, batch, y):
        hidden = torch.empty(batch, WIDTH, device=self.device)
        dist.recv(hidden, self.mesh.rank_at(0))
        hidden.requires_grad_()
        loss = F.cross_entropy(self.net(hidden), y)
        loss.backward()
        dist.send(hidden.grad, self.mesh.rank_at(0))
        return loss

    def _average_gradients(self):
        for p in self.net.parameters():
            dist.all_reduce(p.grad, group=self.mesh.stage_group)
            p.grad /= self.mesh.replicas

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = self._back(len(x), y) if self.mesh.last else self._front(x)
        self._average_gradients()
        self.optimizer.step()
        if self.mesh.last:
            self.board.post(loss)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    mesh = Mesh()
    stage = Stage(mesh, device)
    gen = torch.Generator().manual_seed(60 + mesh.replica)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    for _ in range(60):
        y = torch.randint(0, CLASSES, (32,), generator=gen)
        x = centres[y] + 0.5 * torch.randn(32, FEATURES, generator=gen)
        stage.step(x.to(device), y.to(device))
    dist.barrier(group=mesh.pipe_group)
    if mesh.last and mesh.replica == 0:
        print(f"loss {stage.board.history[0]:.3f} -> {stage.board.history[-1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
