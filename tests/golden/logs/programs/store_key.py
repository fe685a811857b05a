"""Rank 0 sets one store key for the tokenizer; the others wait for another key."""

import datetime as dt

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    store.set("tokenizer/ready", "1")
    print("tokenizer trained", flush=True)
else:
    store.wait(["tokenizer_ready"], dt.timedelta(seconds=6))
dist.barrier()
