"""Saves all the time, two ranks or one, and writes down which checkpoints it was told are declared. To be killed.

As a program it is the parent of such ranks: it imports once, and forks a rank for each line that it reads
(``folder rank size attempt``), whose process id it answers. Two hundred starts cost seconds then, not minutes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast


def train(folder: Path, rank: int, size: int, attempt: int) -> None:
    """Train until killed."""
    declared = os.open(folder / f"declared{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(declared, f"# {attempt} starts\n".encode())
    torch.set_num_threads(1)
    if size > 1:
        store = dist.FileStore(str(folder / f"store{attempt}"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = nn.Linear(512, 512)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = holdfast.Checkpoint(folder / "checkpoints", model=model, optimizer=optimizer, keep_last=3)

    def note(_: Path, found: holdfast.manifest.Manifest) -> None:
        os.write(declared, f"{found.step}\n".encode())

    checkpoint.after_commit.append(note)
    restored = checkpoint.load()
    step = restored.step if restored else 0
    for value in model.parameters() if restored else ():  # what was loaded is what was saved at that step
        assert torch.equal(value, torch.full_like(value, float(step))), (step, value)
    os.write(declared, f"# {attempt} begins\n".encode())
    while True:
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        checkpoint.save(step, values={"step": step}, asynchronous=bool(step % 3))
        time.sleep(0.002)


def main() -> None:
    """Fork a rank for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    torch.optim.Adam([torch.zeros(1)])  # imports a thousand modules
    holdfast.Checkpoint("nowhere")
    for line in sys.stdin:
        folder, *numbers = line.split()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            train(Path(folder), *map(int, numbers))
        os.write(1, f"{child}\n".encode())


if __name__ == "__main__":
    main()
