"""The disk is full when rank 0 saves a checkpoint with torch.save."""
# case: processes=3 ending=crash causes=checkpoint-folder-unusable,checkpoint-io-slow-timeout,python-exception-on-one-rank ranks=0 framework=ddp

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def checkpoint_path(step):
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, f"ckpt_{step}.pt")
    os.symlink("/dev/full", path)  # every write fails with ENOSPC, as on a full disk
    return path


def save_snapshot(model, optimizer, step):
    snapshot = {
        "MODEL_STATE": model.module.state_dict(),
        "OPTIMIZER_STATE": optimizer.state_dict(),
        "STEPS_RUN": step,
    }
    path = checkpoint_path(step)
    torch.save(snapshot, path)  # GUILTY
    print(f"Step {step} | Training snapshot saved at {path}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step in range(1, 61):
        x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0 and rank == 0:
            save_snapshot(model, optimizer, step)  # ALSO

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
