"""Nothing is wrong with the program: it is never started, for a node is missing."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("training finished", flush=True)
