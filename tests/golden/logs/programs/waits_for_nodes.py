"""A correct program that is never started because a node is missing."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("training finished", flush=True)
