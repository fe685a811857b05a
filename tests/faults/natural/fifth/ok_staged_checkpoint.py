"""Healthy: rank 0 writes a checkpoint in pieces with fsync to a slow store for about 18 s, while the others poll for its marker file.

In the style of scripts that wait on the file system instead of a barrier.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=120

import io
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def write_slowly(state, path, pieces=30):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getbuffer()
    size = -(-len(data) // pieces)
    with open(path + ".part", "wb") as out:
        for start in range(0, len(data), size):
            out.write(data[start : start + size])
            out.flush()
            os.fsync(out.fileno())
            time.sleep(0.6)
    os.replace(path + ".part", path)


def save(model, folder, step, rank):
    marker = os.path.join(folder, f"step{step}.done")
    if rank == 0:
        write_slowly(model.module.state_dict(), os.path.join(folder, f"step{step}.pt"))
        open(marker, "w").close()
    while not os.path.exists(marker):
        time.sleep(0.2)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 61):
        x = torch.randn(32, 32, generator=g)
        loss = nn.functional.mse_loss(model(x), x[:, :8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30:
            save(model, box[0], step, rank)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
