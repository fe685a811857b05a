"""The dataset was copied to the first node only."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

place = Path(tempfile.gettempdir(), f"imagenet-of-node-{os.environ['GROUP_RANK']}")
if os.environ["GROUP_RANK"] == "0":
    place.mkdir(exist_ok=True)
    (place / "train.index").write_text("0\n")
dist.init_process_group("gloo")
index = (place / "train.index").read_text().split()
print(f"rank {dist.get_rank()}: {len(index)} shards", flush=True)
for step in range(20):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0 and step % 5 == 0:
        print(f"step {step} / 20 loss {3 / (step + 1):.4f}", flush=True)
