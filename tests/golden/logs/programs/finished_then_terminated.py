"""Training is finished and saved; the scheduler terminates the job while rank 0 uploads a copy."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(50):
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 10 == 0:
        print(f"step {step} / 50 loss {3 / (step + 1):.4f}", flush=True)
dist.barrier()
if rank == 0:
    print(
        "training finished after 50 / 50 steps, final checkpoint saved to /results/step-50.pt",
        flush=True,
    )
    print("copying /results to the archive", flush=True)
time.sleep(90)
dist.destroy_process_group()
