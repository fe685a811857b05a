# ruff: noqa: T201 - a script that talks
"""Trains in place; a fault comes once all have copies in memory, and it may go. Arguments: FOLDER [FAULT [VICTIM]].

What FAULT is stands in :func:`fault`.
"""

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
FAULT, VICTIM = sys.argv[2] if sys.argv[2:] else "killed", int(sys.argv[3]) if sys.argv[3:] else 1
SAVED = 3
MEMORY = Path(os.environ["HOLDFAST_BOX"]).parent / "checkpoints"
CALLS = []


def tell(**what):
    with (FOLDER / "told").open("a") as file:
        file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **what}) + "\n")


def copied(rank):
    """Whether all ranks said that their host has a copy in memory."""
    if (FOLDER / f"copied{rank}").exists():
        return len(list(FOLDER.glob("copied*"))) == dist.get_world_size()
    if list(MEMORY.glob(f"step-*{SAVED}")):
        (FOLDER / f"copied{rank}").touch()
    return False


def due(rank):
    """Whether it is time for the fault, which all ranks learn at the same step."""
    ready = torch.tensor(int(copied(rank) and (FOLDER / "go").exists()))
    dist.all_reduce(ready, op=dist.ReduceOp.MIN)
    return bool(ready)


def fault(rank):
    """What happens to a rank in generation 0: VICTIM is killed, but for ``raises`` and ``alone``; some do more."""
    if FAULT == "raises" and rank == VICTIM:
        raise ValueError("of my own")
    if FAULT == "alone":  # looks as if it came from another rank's death, and nobody died
        if rank == 0:
            tell(event="fault")
            raise RuntimeError("this is not about NCCL")
    elif rank == VICTIM:
        (FOLDER / "ckpts").rename(FOLDER / "away")  # what goes on has memory alone
        tell(event="fault")
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "deaf" and rank == 2:
        time.sleep(1000)


def train():
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    CALLS.append(generation)
    if FAULT == "twice" and generation == 1 and os.environ["RANK"] == "2":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = holdfast.Checkpoint(FOLDER / "ckpts", model=model, optimizer=optimizer, copies=["memory"])
    restored = checkpoint.load()
    begun = restored.step if restored else 0
    tell(event="begun", rank=rank, generation=generation, step=begun, folder=str(restored.folder) if restored else "")
    for step in range(begun + 1, 10000):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        if step == begun + 1:
            tell(event="step", rank=rank, generation=generation, calls=CALLS)
        if step == SAVED:
            checkpoint.save(step, asynchronous=False)
        if generation == 0 and due(rank):
            fault(rank)
        if generation > 0 and step > begun + 20:
            break
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()
    return generation


try:
    print("ended in generation", holdfast.in_place(train))
except RuntimeError:
    tell(event="left")
    raise
