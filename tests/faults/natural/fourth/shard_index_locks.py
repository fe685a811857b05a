"""Two ranks take the lock files of the shard and of the index in opposite order, and each waits for the lock that the other holds.

Modelled on preprocessing code that keeps one lock file per cache file (a pattern of the filelock users in public data pipelines).
"""
# case: processes=4 ending=hang causes=file-io-blocked,stalled-outside-collectives,rank-missing-collective ranks=0,1 framework=ddp

import contextlib
import fcntl
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CACHE = os.path.join(tempfile.gettempdir(), f"corpus-{os.environ['MASTER_PORT']}")
SHARDS = 8


@contextlib.contextmanager
def file_lock(name):
    """Hold an exclusive lock on a file of the cache."""
    with open(os.path.join(CACHE, name + ".lock"), "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # GUILTY
        yield


def read_index():
    path = os.path.join(CACHE, "index.json")
    return json.load(open(path)) if os.path.exists(path) else {}


def write_index(index):
    with open(os.path.join(CACHE, "index.json"), "w") as f:
        json.dump(index, f)


def tokenize_shard(number):
    """Write one shard and enter it in the index, so that both are always consistent."""
    with file_lock("shards"):
        tokens = torch.randint(0, 200, (2048,), generator=torch.Generator().manual_seed(number))
        torch.save(tokens, os.path.join(CACHE, f"shard-{number}.pt"))
        time.sleep(0.3)
        with file_lock("index"):  # ALSO
            index = read_index()
            index[str(number)] = len(tokens)
            write_index(index)


def drop_stale_shards(keep):
    """Remove shards of an earlier run that the index has and the configuration no longer has."""
    with file_lock("index"):  # ALSO
        index = read_index()
        time.sleep(0.3)
        with file_lock("shards"):  # ALSO
            for number in [n for n in index if int(n) not in keep]:
                os.unlink(os.path.join(CACHE, f"shard-{number}.pt"))
                del index[number]
            write_index(index)


def prepare(rank):
    if rank == 0:
        for number in range(SHARDS):
            tokenize_shard(number)  # ALSO
    elif rank == 1:
        time.sleep(0.2)
        for _ in range(SHARDS):
            drop_stale_shards(keep=range(SHARDS))  # ALSO


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(CACHE, exist_ok=True)
    dist.barrier()
    prepare(rank)  # ALSO
    dist.barrier()
    tokens = torch.cat([torch.load(os.path.join(CACHE, f"shard-{n}.pt")) for n in range(rank, SHARDS, world)])
    model = DDP(nn.Sequential(nn.Embedding(200, 32), nn.Linear(32, 200)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(50):
        x, y = tokens[step : step + 64], tokens[step + 1 : step + 65]
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
