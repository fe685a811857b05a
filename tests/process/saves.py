"""Rank 1 hangs in its third save: in state_dict (`state`) or in the writer thread (`thread`)."""

import os
import sys
import time

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
rank = dist.get_rank()


class Slow:
    def __init__(self):
        self.saves = 0

    def state_dict(self):
        self.saves += 1
        if rank == 1 and self.saves == 3:
            os.write(1, b"rank 1 hangs\n")
            if sys.argv[1] == "state":
                time.sleep(600)
            else:
                os.fsync = lambda _: time.sleep(600)  # like a file server that is down
        return {}

    def load_state_dict(self, state):
        pass


checkpoint = holdfast.Checkpoint(
    "ckpts",
    model=torch.nn.Linear(8, 8),
    stateful={"slow": Slow()},
    asynchronous=sys.argv[1] == "thread",
)
for step in range(1, 100):
    holdfast.step(step)
    dist.all_reduce(torch.ones(4))
    if step % 10 == 0:
        checkpoint.save(step)
