"""A job that succeeds unless it is interrupted."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(60):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0 and step % 10 == 0:
        print(f"step {step} / 60 loss {3 / (step + 1):.4f}", flush=True)
    time.sleep(0.2)
if dist.get_rank() == 0:
    print("training finished", flush=True)
dist.destroy_process_group()
