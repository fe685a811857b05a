"""Saves all the time, two ranks or one, and writes down which checkpoints it was told are declared. To be killed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast


def main(folder: Path, rank: int, size: int, attempt: int) -> None:
    """Train until killed."""
    torch.set_num_threads(1)
    if size > 1:
        store = dist.FileStore(str(folder / f"store{attempt}"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = holdfast.Checkpoint(folder / "checkpoints", model=model, optimizer=optimizer, keep_last=3)
    declared = os.open(folder / f"declared{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(_: Path, found: holdfast.manifest.Manifest) -> None:
        os.write(declared, f"{found.step}\n".encode())

    checkpoint.after_commit.append(note)
    restored = checkpoint.load()
    step = restored.step if restored else 0
    # what was loaded is what was saved at that step
    assert torch.equal(model.bias, torch.full((64,), float(step))) or restored is None, (step, model.bias)
    os.write(declared, f"# begins after {step}\n".encode())
    while True:
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        checkpoint.save(step, values={"step": step}, asynchronous=bool(step % 3))
        time.sleep(0.002)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
