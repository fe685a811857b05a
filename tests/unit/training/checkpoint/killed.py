"""Save continuously on one or two ranks, and record the checkpoints reported as committed."""

from __future__ import annotations

import os
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
    checkpoint = holdfast.Checkpoint(
        folder / "checkpoints", model=model, optimizer=optimizer, keep_last=3
    )

    def note(_: Path, manifest: holdfast.core.checkpoint_manifest.Manifest) -> None:
        os.write(declared, f"{manifest.step}\n".encode())

    checkpoint.after_commit.append(note)
    restored = checkpoint.load()
    step = restored.step if restored else 0
    for value in (
        model.parameters() if restored else ()
    ):  # the loaded state is that of the saved step
        assert torch.equal(value, torch.full_like(value, float(step))), (step, value)
    os.write(declared, f"# {attempt} begins\n".encode())
    while True:
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        checkpoint.save(step, values={"step": step}, asynchronous=bool(step % 3))
        time.sleep(0.002)
