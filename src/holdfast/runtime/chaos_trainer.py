"""The small job that ``holdfast chaos run`` disturbs: same seed, same numbers to the last bit, on CPU and gloo.

Each rank appends to ``trace-rank<r>.jsonl`` what it did, one line a fact, so that one can see afterwards which losses
came of which samples, in which order, and what was done twice. It is copied into the folder of a scenario and started
there by ``holdfast run``, as a script of a user's own; nobody imports it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import holdfast
from holdfast import settings

WIDTH = 16
SAMPLES = 96
BATCH = 4  # of a rank


class Samples(Dataset[tuple[Tensor, Tensor, int]]):
    """Sample ``i`` is made from ``i`` alone."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        rows = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(number))
        return rows[0], rows[1], number


class Trace:
    """What this rank did, as lines that survive its death by any signal."""

    def __init__(self, rank: int, generation: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._handle = os.open(f"trace-rank{rank}.jsonl", flags, 0o644)
        self._generation = generation

    def note(self, what: str, step: int, **more: Any) -> None:
        """One line, in one write."""
        fact = {"what": what, "step": step, "generation": self._generation, "time": time.time(), **more}
        os.write(self._handle, json.dumps(fact).encode() + b"\n")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=6)
    parser.add_argument("--evaluate-every", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0, help="loader processes of each rank")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds that a step takes at least")
    parser.add_argument("--synchronous", action="store_true", help="training waits until a checkpoint is declared")
    parser.add_argument("--parts", action="store_true", help="batches in as many pieces as the policy asks for")
    return parser.parse_args()


def made(mode: str) -> nn.Module:
    """The model, with numbers drawn at random in every step, as dropout does."""
    plain = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH))
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(plain)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (plain[0], plain[3], plain):
        fully_shard(part, mesh=mesh)
    return plain


def evaluate(model: nn.Module) -> float:
    """The mean loss over as many samples of every rank; no random number is drawn."""
    mine = [Samples()[number] for number in range(dist.get_rank(), SAMPLES, 12)][:4]
    model.eval()
    with torch.no_grad():
        total = sum((nn.functional.mse_loss(model(x[None]), y[None]) for x, y, _ in mine), torch.zeros(()))
    model.train()
    dist.all_reduce(total)
    return float(total)


def digest(model: nn.Module) -> str:
    """The hash of this rank's weights, to the last bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        mine = value.to_local() if hasattr(value, "to_local") else value
        found.update(name.encode() + mine.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """The whole job."""
    options = parse_arguments()
    dist.init_process_group("gloo")
    trace = Trace(dist.get_rank(), settings.count("TORCHELASTIC_RESTART_COUNT"))
    torch.manual_seed(0)
    model = made(options.mode)
    torch.manual_seed(dist.get_rank())  # of dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler: DistributedSampler[Any] = DistributedSampler(Samples(), shuffle=True, seed=0)
    loader = DataLoader(Samples(), BATCH, sampler=sampler, num_workers=options.workers)

    checkpoint = holdfast.Checkpoint(
        "checkpoints", model=model, optimizer=optimizer, every_steps=options.save_every,
        asynchronous=not options.synchronous,
    )  # fmt: skip
    checkpoint.after_commit.append(lambda _, manifest: trace.note("saved", manifest.step))
    loop = holdfast.loop(loader, checkpoint, steps=options.steps)
    begun = False
    for batch in loop:
        if not begun:
            begun = True
            trace.note("resumed", loop.step - 1, pid=os.getpid())
        step(loop, model, optimizer, batch, trace, parted=options.parts)
        time.sleep(options.pace)
        if loop.step % options.evaluate_every == 0:
            with holdfast.phase("evaluation", budget="8s"):
                trace.note("evaluating", loop.step)
                trace.note("evaluated", loop.step, loss=evaluate(model).hex())
        if loop.step % options.save_every == 0:
            trace.note("saving", loop.step)
    if not begun:
        trace.note("resumed", loop.step, pid=os.getpid())
    trace.note("done", loop.step, weights=digest(model))
    dist.destroy_process_group()


def step(
    loop: Any, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, trace: Trace, *, parted: bool
) -> None:
    """One step; it is noted before gradients meet, so that no other rank can be further without that line."""
    optimizer.zero_grad()
    total = 0.0
    for (x, y, _), weight in loop.parts(batch) if parted else [(batch, 1.0)]:
        loss = weight * nn.functional.mse_loss(model(x), y)
        total += loss.item()
        if not parted:
            trace.note("step", loop.step, loss=total.hex(), samples=batch[2].tolist())
        loss.backward()
    if parted:
        trace.note("step", loop.step, loss=total.hex(), samples=batch[2].tolist())
    loop.report(loss=total)
    optimizer.step()


if __name__ == "__main__":
    main()
