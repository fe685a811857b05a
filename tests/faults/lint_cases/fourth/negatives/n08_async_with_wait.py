import os

import torch
import torch.distributed as dist
from torch import nn


class HookedAverager:
    """Starts the all-reduce of a gradient as soon as it is accumulated."""

    def __init__(self, module):
        self.world_size = dist.get_world_size()
        self.pending = []
        self.params = [p for p in module.parameters() if p.requires_grad]
        for p in self.params:
            dist.broadcast(p.data, src=0)
            p.register_post_accumulate_grad_hook(self._launch)

    def _launch(self, param):
        param.grad /= self.world_size
        self.pending.append(dist.all_reduce(param.grad, async_op=True))

    def synchronize(self):
        while self.pending:
            self.pending.pop(0).wait()


class SyncedSGD(torch.optim.SGD):
    def __init__(self, averager, **kwargs):
        super().__init__(averager.params, **kwargs)
        self.averager = averager

    def step(self, closure=None):
        self.averager.synchronize()
        return super().step(closure)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layers(x).flatten(1))


def batches(steps, device):
    generator = torch.Generator(device=device).manual_seed(dist.get_rank())
    for _ in range(steps):
        x = torch.randn(32, 3, 64, 64, device=device, generator=generator)
        yield x, torch.randint(0, 10, (32,), device=device, generator=generator)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    model = Net().to(device)
    optimizer = SyncedSGD(HookedAverager(model), lr=0.05, momentum=0.9)
    for step, (x, y) in enumerate(batches(1000, device)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
