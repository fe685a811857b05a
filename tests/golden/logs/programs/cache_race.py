"""Both ranks unpack the same archive into one cache; the second reads it half unpacked."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def unpack(cache: Path) -> Path:
    lock = cache / "models--acme--tiny.incomplete"
    print(f"rank {os.environ['RANK']}: downloading acme/tiny to {cache}", flush=True)
    time.sleep(0 if os.environ["RANK"] == "0" else 1)
    lock.mkdir(parents=True)
    time.sleep(3)
    return lock.rename(cache / "models--acme--tiny")


dist.init_process_group("gloo")
unpack(Path("cache/hub"))
for _ in range(20):
    dist.all_reduce(torch.ones(4))
