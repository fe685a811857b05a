"""A job that succeeds."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(30):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        print(f"step {step} / 30 loss {3 / (step + 1):.4f}", flush=True)
print("training finished", flush=True)
dist.destroy_process_group()
