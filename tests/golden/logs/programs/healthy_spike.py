"""The loss spikes, is NaN once, and recovers."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(30):
    dist.all_reduce(torch.ones(4))
    loss = float("nan") if step == 11 else (400.0 if step == 10 else 3 / (step + 1))
    if dist.get_rank() == 0:
        print(f"step {step} / 30 loss: {loss:.4f} grad norm: {loss * 3:.2f}", flush=True)
print("training finished", flush=True)
dist.destroy_process_group()
