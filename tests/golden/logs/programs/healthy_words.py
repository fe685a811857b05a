"""A job that succeeds and whose output contains many words that look like failures."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    print(
        "options: nccl_timeout=1800 abort_on_nan=False kill_stragglers=False on_error=raise fatal=0",
        flush=True,
    )
    print("warning: 3 of 120000 images failed to decode (truncated), skipped", flush=True)
for epoch in range(4):
    for _ in range(20):
        dist.all_reduce(torch.ones(8))
    if rank == 0:
        print(
            f"epoch {epoch + 1} / 4  loss {2 / (epoch + 1):.4f}  word error rate {0.4 / (epoch + 1):.3f}",
            flush=True,
        )
        print("  class      precision  recall  errors", flush=True)
        print("  killed          0.91    0.88      12", flush=True)
        print("  crash            nan    0.00       0   (no samples)", flush=True)
if rank == 0:
    print("0 errors, 0 timeouts, 0 ranks lost; training finished", flush=True)
dist.destroy_process_group()
