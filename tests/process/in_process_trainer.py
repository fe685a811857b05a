"""Train with in-process restart; inject a fault once all ranks have copies and FOLDER/go exists.

Arguments: FOLDER [FAULT [VICTIM]]; see :func:`fault`.
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
MEMORY = Path(os.environ["HOLDFAST_TRACE"]).parent / "checkpoints"
CALLS = []


def record_event(**what):
    with (FOLDER / "events").open("a") as file:
        file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **what}) + "\n")


def copied(rank):
    """Return whether all ranks have reported a copy in their host's memory."""
    if (FOLDER / f"copied{rank}").exists():
        return len(list(FOLDER.glob("copied*"))) == dist.get_world_size()
    if list(MEMORY.glob(f"step-*{SAVED}")):
        (FOLDER / f"copied{rank}").touch()
    return False


def due(rank):
    """Return whether the fault is due; all ranks agree at the same step."""
    ready = torch.tensor(int(copied(rank) and (FOLDER / "go").exists()))
    dist.all_reduce(ready, op=dist.ReduceOp.MIN)
    return bool(ready)


def fault(rank):
    """Inject the fault in generation 0: VICTIM is killed, except for ``raises`` and ``alone``."""
    if FAULT == "raises" and rank == VICTIM:
        raise ValueError("of my own")
    if FAULT == "alone":  # looks like a consequence of another rank's death, but no rank died
        if rank == 0:
            record_event(event="fault")
            raise RuntimeError("this is not about NCCL")
    elif rank == VICTIM:
        (FOLDER / "ckpts").rename(FOLDER / "away")  # only copies in memory remain
        record_event(event="fault")
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
    checkpoint = holdfast.Checkpoint(
        FOLDER / "ckpts", model=model, optimizer=optimizer, copies=["memory"]
    )
    restored = checkpoint.load()
    start = restored.step if restored else 0
    record_event(
        event="begun",
        rank=rank,
        generation=generation,
        step=start,
        folder=str(restored.folder) if restored else "",
    )
    for step in range(start + 1, 10000):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        if step == start + 1:
            record_event(event="step", rank=rank, generation=generation, calls=CALLS)
        if step == SAVED:
            checkpoint.save(step, asynchronous=False)
        if generation == 0 and due(rank):
            fault(rank)
        if generation > 0 and step > start + 20:
            break
        time.sleep(0.02)
    dist.barrier()
    return generation


try:
    print("ended in generation", holdfast.in_place(train))  # noqa: T201
    dist.destroy_process_group()  # after train freed the model: see python-lock-held
except RuntimeError:
    record_event(event="failed")
    raise
