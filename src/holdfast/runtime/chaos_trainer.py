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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import holdfast

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
    parser.add_argument("--mode", choices=("ddp", "fsdp2", "deepspeed"), default="ddp")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=6)
    parser.add_argument("--evaluate-every", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0, help="loader processes of each rank")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds that a step takes at least")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def forever(loader: DataLoader[Any], sampler: DistributedSampler[Any], step: int) -> Iterator[Any]:
    """Batches from ``step`` on, epoch after epoch."""
    epoch, done = divmod(step, len(loader))
    while True:
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if number >= done:
                yield batch
        epoch, done = epoch + 1, 0


def evaluate(model: nn.Module) -> float:
    """The mean loss over every tenth sample, over all ranks."""
    rows = [Samples()[number] for number in range(0, SAMPLES, 10)][dist.get_rank() :: dist.get_world_size()]
    with torch.no_grad():
        total = sum((nn.functional.mse_loss(model(x), y) for x, y, _ in rows), torch.zeros(()))
    dist.all_reduce(total)
    return float(total)


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Rank 0 writes, all ranks know when it has."""
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        with (folder / "unfinished").open("wb") as stream:
            torch.save(state, stream)
            os.fsync(stream.fileno())
        (folder / "unfinished").rename(folder / f"step-{step:010d}")
    dist.barrier()


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step of the newest checkpoint, after it was loaded; 0 where there is none."""
    newest = max(folder.glob("step-*"), default=None)
    if newest is None:
        return 0
    state = torch.load(newest, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(newest.name.removeprefix("step-"))


def digest(model: nn.Module) -> str:
    """The hash of all weights, to the last bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """The whole job."""
    options = parse_arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trace = Trace(rank, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.0), nn.Linear(32, WIDTH))
    model = nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler: DistributedSampler[Any] = DistributedSampler(Samples(), shuffle=True, seed=0)
    loader = DataLoader(Samples(), BATCH, sampler=sampler, num_workers=options.workers)

    step = load(options.checkpoints, plain, optimizer)
    trace.note("resumed", step, pid=os.getpid())
    batches = forever(loader, sampler, step)
    while step < options.steps:
        x, y, numbers = next(batches)
        loss = nn.functional.mse_loss(model(x), y)
        step += 1
        # Before the backward pass: no other rank can have done this step without this line being there.
        trace.note("step", step, loss=loss.item().hex(), samples=numbers.tolist())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.pace)
        if step % options.evaluate_every == 0:
            with holdfast.phase("evaluation"):
                trace.note("evaluating", step)
                trace.note("evaluated", step, loss=evaluate(plain).hex())
        if step % options.save_every == 0 or step == options.steps:
            with holdfast.phase("checkpoint"):
                trace.note("saving", step)
                save(options.checkpoints, step, {"model": plain.state_dict(), "optimizer": optimizer.state_dict()})
            trace.note("saved", step)
    trace.note("done", step, weights=digest(plain))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
