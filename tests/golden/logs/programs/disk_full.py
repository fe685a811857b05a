"""The file system for checkpoints is full; a small /dev/shm represents it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    print("saving checkpoint of step 3", flush=True)
    with open("/dev/shm/checkpoint-3.bin", "wb") as file:  # noqa: PTH123
        file.write(torch.ones(1 << 20).numpy().tobytes())
dist.all_reduce(torch.ones(1))
