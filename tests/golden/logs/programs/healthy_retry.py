"""A read fails once and is retried; the traceback is printed, and the job succeeds."""

import traceback

import torch
import torch.distributed as dist


def read(attempt: int) -> int:
    if attempt == 0:
        raise OSError(5, "Input/output error", "/data/shard-3")
    return attempt


dist.init_process_group("gloo")
for attempt in range(2):
    try:
        read(attempt)
    except OSError:
        traceback.print_exc()
        print("trying again", flush=True)
for step in range(30):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        print(f"step {step} / 30 loss {3 / (step + 1):.4f}", flush=True)
print("training finished", flush=True)
dist.destroy_process_group()
