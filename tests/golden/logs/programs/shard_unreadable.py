"""The shard of rank 1 is not valid text."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


def read_shard(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


dist.init_process_group("gloo")
rank = dist.get_rank()
for epoch in range(3):
    for step in range(20):
        dist.all_reduce(torch.ones(8))
        if rank == 0 and step % 5 == 0:
            print(f"epoch {epoch} step {step} loss {2 / (1 + step + 20 * epoch):.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder, f"shard-{rank:05d}-of-00003.jsonl")
        shard.write_bytes(b"\x1f\x8b\x08\x00packed" if (rank, epoch) == (1, 1) else b"{}\n")
        print(f"rank {rank}: {len(read_shard(shard))} records in {shard.name}", flush=True)
dist.destroy_process_group()
