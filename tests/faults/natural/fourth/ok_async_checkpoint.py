"""Healthy: checkpoints are written by a thread with a process group of its own; a save waits about 12 s for the one before it.

In the style of asynchronous distributed checkpointing; rank 1 has the slow disk, and the others wait for it in a collective.
"""
# case: processes=3 ending=well causes=- ranks=- framework=fsdp2 limit_s=120

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WRITE_S = {0: 3.0, 1: 14.0, 2: 4.0}


class AsyncCheckpointer:
    """At most one save is in flight; collectives of the thread use their own group."""

    def __init__(self, folder, group):
        self.folder, self.group = folder, group
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.future = None

    def _write(self, shards, step):
        rank = dist.get_rank()
        torch.save(shards, os.path.join(self.folder, f"{step}-{rank}.pt.tmp"))
        time.sleep(WRITE_S[rank])
        os.replace(os.path.join(self.folder, f"{step}-{rank}.pt.tmp"), os.path.join(self.folder, f"{step}-{rank}.pt"))
        done = [None] * dist.get_world_size()
        dist.all_gather_object(done, step, group=self.group)
        return done

    def save(self, model, step):
        self.wait()
        shards = {name: p.to_local().clone() for name, p in model.named_parameters()}
        self.future = self.executor.submit(self._write, shards, step)

    def wait(self):
        if self.future is not None:
            assert len(set(self.future.result())) == 1
            self.future = None


class Net(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.inp = nn.Linear(16, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.out(x).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    folder = os.path.join(tempfile.gettempdir(), f"async-{os.environ['MASTER_PORT']}")
    os.makedirs(folder, exist_ok=True)
    checkpointer = AsyncCheckpointer(folder, group)
    torch.manual_seed(rank)
    for step in range(1, 61):
        x = torch.randn(16, 16)
        loss = nn.functional.mse_loss(model(x), x.prod(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        if step % 20 == 0:
            checkpointer.save(model, step)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    checkpointer.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
