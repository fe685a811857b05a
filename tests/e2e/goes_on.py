# ruff: noqa: T201 - a script that talks
"""Trains in place; rank 1 is killed once it may go. Arguments: FOLDER. State of before lies in memory: it is kept."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

FOLDER = Path(sys.argv[1])
CALLS = []


def tell(**what):
    with (FOLDER / "told").open("a") as file:
        file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **what}) + "\n")


def train():
    dist.init_process_group("gloo")
    rank, generation = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    CALLS.append(generation)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10000):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        if step == 0:
            tell(event="step", rank=rank, generation=generation, calls=CALLS)
        if generation == 0 and rank == 1 and (FOLDER / "go").exists():
            tell(event="fault")
            os.kill(os.getpid(), signal.SIGKILL)
        if generation > 0 and step == 100:
            break
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()
    return generation


print("ended in generation", holdfast.in_place(train))
