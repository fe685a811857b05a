"""A search for the largest batch that fits prints its failed attempts; the job succeeds."""

import logging

import torch
import torch.distributed as dist

logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
logger = logging.getLogger("batch-size")
dist.init_process_group("gloo")
rank = dist.get_rank()


def activations(size: int) -> torch.Tensor:
    return torch.empty((size, 1 << 41), dtype=torch.float32) if size > 32 else torch.ones(size)


size = 128
while True:
    try:
        activations(size)
        break
    except RuntimeError:
        logger.exception("batch of %d does not fit", size)
        size //= 2
if rank == 0:
    print(f"using a batch of {size}", flush=True)
for step in range(40):
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 10 == 0:
        print(f"step {step} / 40 loss {3 / (step + 1):.4f}", flush=True)
if rank == 0:
    print("step 40 / 40, training finished", flush=True)
dist.destroy_process_group()
