"""Healthy: rank 0 writes its checkpoints to a slow store (about 8 s each) while the others wait in a barrier.

In the style of the DDP tutorial of PyTorch; only the store is slow.
"""
# case: processes=4 ending=well causes=- ranks=- framework=ddp limit_s=90

import io
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SlowStore:
    """A network file system with little bandwidth."""

    def __init__(self, path, bytes_per_second=600_000):
        self.path, self.rate = path, bytes_per_second

    def write(self, blob, chunk=100_000):
        with open(self.path, "wb") as f:
            for i in range(0, len(blob), chunk):
                f.write(blob[i : i + chunk])
                f.flush()
                os.fsync(f.fileno())
                time.sleep(chunk / self.rate)


def save(model, optimizer, epoch):
    buffer = io.BytesIO()
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, buffer)
    path = os.path.join(tempfile.gettempdir(), f"slow-{os.environ['MASTER_PORT']}.pt")
    SlowStore(path).write(buffer.getvalue())
    os.remove(path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 300), nn.ReLU(), nn.Linear(300, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for _ in range(15):
            x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
            save(model, optimizer, epoch)
        dist.barrier()
    if rank == 0:
        print("finished", flush=True)
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
