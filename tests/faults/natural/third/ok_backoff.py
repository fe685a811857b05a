"""Healthy: one rank reads its data from a service that fails for a while; it retries with growing pauses (16 s in all) and then goes on.

In the style of an FSDP2 example with a remote dataset.
"""
# case: processes=2 ending=well causes=- ranks=- framework=fsdp2 limit_s=90

import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class ServiceUnavailable(OSError):
    pass


class RemoteDataset:
    def __init__(self, rank, outage):
        self.rank, self.outage = rank, outage
        self.generator = torch.Generator().manual_seed(rank)

    def request(self, step):
        if step == 12 and self.outage > 0:
            self.outage -= 1
            raise ServiceUnavailable(f"503 Service Unavailable (shard {self.rank})")
        return torch.randn(16, 20, generator=self.generator)

    def fetch(self, step, attempts=6):
        pause = 0.5
        for attempt in range(1, attempts + 1):
            try:
                return self.request(step)
            except ServiceUnavailable:
                traceback.print_exc()
                print(f"attempt {attempt} of {attempts} failed, next one in {pause} s", file=sys.stderr, flush=True)
                time.sleep(pause)
                pause *= 2
        raise RuntimeError("the data service is down")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(20, 20), nn.Tanh()) for _ in range(3)), nn.Linear(20, 1))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = RemoteDataset(rank, outage=5 if rank == 1 else 0)
    for step in range(40):
        x = data.fetch(step)
        loss = nn.functional.mse_loss(model(x).squeeze(-1), x.sum(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
