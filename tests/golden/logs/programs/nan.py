"""The loss becomes NaN, and the script raises an exception."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(10):
    loss = torch.tensor(2.0 if step < 6 else float("nan"))
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"step {step} / 10 loss: {loss.item():.4f}", flush=True)
    if loss.isnan():
        raise FloatingPointError(f"loss is {loss.item()} at step {step}, stopping training")
