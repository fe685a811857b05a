"""A process of another user's job holds the lock file of one shard, and __getitem__ waits for it on one rank."""
# case: processes=3 ending=hang causes=file-io-blocked,rank-missing-collective,stalled-outside-collectives ranks=1 framework=ddp

import fcntl
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

HOLDER = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, 2); print(1, flush=True); time.sleep(120)"


class LockedShards(Dataset):
    """Shards on a shared disk; a lock file keeps the preprocessing job from replacing one."""

    def __init__(self, folder, shards=5, per_shard=32):
        self.folder, self.per_shard, self.shards = folder, per_shard, shards
        for i in range(shards):
            torch.save(torch.randn(per_shard, 12), f"{folder}/shard{i}.pt")
            open(f"{folder}/shard{i}.lock", "w").close()

    def __len__(self):
        return self.shards * self.per_shard

    def __getitem__(self, index):
        i, row = divmod(index, self.per_shard)
        with open(f"{self.folder}/shard{i}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # GUILTY
            return torch.load(f"{self.folder}/shard{i}.pt")[row]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = tempfile.mkdtemp()
    dataset = LockedShards(folder)
    if rank == 1:
        preprocessing = subprocess.Popen(
            [sys.executable, "-c", HOLDER, os.path.join(folder, "shard3.lock")],
            stdout=subprocess.PIPE,
        )
        preprocessing.stdout.readline()
    dist.barrier()
    loader = DataLoader(dataset, batch_size=8)
    model = DDP(nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 12)))
    optimizer = torch.optim.Adam(model.parameters())
    for step, batch in enumerate(loader):  # ALSO
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
