"""Task 1 keeps all activations until the Slurm step exceeds its memory."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
activations = []
for step in range(200):
    if rank == 1:
        activations.append(torch.ones(8 << 18))
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 20 == 0:
        print(f"step {step} / 200 loss {3 / (step + 1):.4f}", flush=True)
dist.destroy_process_group()
