"""A job that succeeds and prints warnings throughout."""

import warnings

import torch
import torch.distributed as dist


def track(step: int) -> None:
    raise ConnectionResetError(f"the tracker does not answer at step {step}")


dist.init_process_group("gloo")
warnings.warn("the fused kernel was not found, using the slow path", RuntimeWarning, stacklevel=1)
for step in range(30):
    try:
        track(step)
    except ConnectionResetError as error:
        if step == 3:
            print(f"tracking failed once more: {error}; going on", flush=True)
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        print(f"step {step} / 30 loss {3 / (step + 1):.4f}", flush=True)
print("all done", flush=True)
