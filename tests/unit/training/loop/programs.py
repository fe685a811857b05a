"""Programs for the loop tests: each function runs on every rank and returns observations."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import holdfast
from holdfast.core import checkpoint_manifest
from holdfast.core.adjustments import Adjustments, StepWindow, encode_adjustments
from holdfast.core.errors import HoldfastError
from holdfast.training.loop import step_sync


class Numbers(Dataset):
    """Sample i is i, and a vector made of it."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return index, torch.full((4,), index / 48)


class Said(logging.Handler):
    """What was logged."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("holdfast").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def adjusted(folder, **fields):
    """Has this process obey such adjustments from now on."""
    path = Path(folder, f"adjustments-{os.getpid()}.json")
    path.write_bytes(encode_adjustments(Adjustments(**fields)))
    os.environ["HOLDFAST_ADJUSTMENTS"] = str(path)


class Job:
    """A small model with dropout under DDP, and its loop."""

    def __init__(
        self, folder, *, batch=4, workers=0, epochs=None, steps=None, loop=None, **options
    ):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        data = Numbers()
        sampler = DistributedSampler(data, seed=2)
        self.loader = DataLoader(data, batch, sampler=sampler, num_workers=workers)
        self.checkpoint = holdfast.Checkpoint(
            Path(folder, "checkpoints"), model=self.model, optimizer=self.optimizer, **options
        )
        self.loop = holdfast.loop(
            self.loader, self.checkpoint, epochs=epochs, steps=steps, **(loop or {})
        )
        torch.manual_seed(dist.get_rank())
        self.trace = []

    def run(self, *, stop_after=None, loss=None):
        """Train; the trace holds of each step its number, loss and samples."""
        for numbers, x in self.loop:
            self.optimizer.zero_grad()
            total = 0.0
            for part, weight in self.loop.split_batch(x):
                here = weight * self.model(part).square().mean()
                here.backward()
                total += here.item()
            self.optimizer.step()
            self.loop.report(loss=total if loss is None else loss(self.loop.step))
            self.trace.append((self.loop.step, total.hex(), numbers.tolist()))
            if self.loop.step == stop_after:
                self.checkpoint.wait()
                break
        return self.trace


def interrupted(_, folder):
    """An undisturbed run, one that is interrupted, and its continuation."""
    whole = Job(Path(folder, "whole"), epochs=3, every_steps=4).run()
    first = Job(Path(folder, "broken"), epochs=3, every_steps=4, workers=2).run(stop_after=10)
    job = Job(Path(folder, "broken"), epochs=3, every_steps=4, workers=2)
    second = job.run()
    saved = sorted(path.name for path in Path(folder, "broken", "checkpoints").glob("step-*"))
    after = Job(Path(folder, "broken"), epochs=3).run()
    return whole, first, second, saved, after


def elastic(_, folder, keep):
    """Goes on with what other ranks have saved, if there is anything; up to the checkpoint of step 3 otherwise."""
    said = Said()
    there = Path(folder, "checkpoints").exists()
    dist.barrier()
    job = Job(folder, batch=4, epochs=1, every_steps=3, loop={"keep": keep})
    trace = job.run() if there else job.run(stop_after=4)[:3]  # the fourth is begun, and never over
    return trace, said.lines


def rated(_, folder, options, kind, steps):
    """Goes on to so many steps; the rate before each, what was said, and what the newest manifest keeps."""
    said = Said()
    job = Job(folder, batch=4, steps=steps, loop=options)
    if kind == "scheduled":
        first = torch.optim.lr_scheduler.LinearLR(job.optimizer, total_iters=4)
        then = torch.optim.lr_scheduler.StepLR(job.optimizer, step_size=100)
        scheduler = torch.optim.lr_scheduler.SequentialLR(
            job.optimizer, [first, then], milestones=[4]
        )
        job.checkpoint.state.stateful[".scheduler"] = scheduler
    seen = []
    for _, x in job.loop:
        seen.append((job.loop.step, job.optimizer.param_groups[0]["lr"]))
        job.optimizer.zero_grad()
        job.model(x).square().mean().backward()
        job.optimizer.step()
        if kind == "scheduled":
            scheduler.step()
    newest = max(Path(folder, "checkpoints").glob("step-*"))
    return seen, said.lines, checkpoint_manifest.read_manifest(newest).values


def disturbed(rank, folder, what, step):
    """One rank's loss goes wrong; which error each rank gets, at which step, and what was saved."""
    value = {"nan": math.nan, "inf": math.inf}.get(what, 50.0)
    job = Job(folder, steps=200, every_steps=50)
    if rank == 1 or what == "spike":
        loss = lambda now: value if now >= step else 1.0 + 0.01 * (now % 7)  # noqa: E731
    else:
        loss = lambda now: 1.0 + 0.01 * (now % 7)  # noqa: E731
    try:
        job.run(loss=loss)
    except HoldfastError as error:
        job.checkpoint.wait()  # what had been begun before
        dist.barrier()
        newest = max(path.name for path in Path(folder, "checkpoints").glob("step-*"))
        return type(error).__name__, error.first, error.last, str(error), newest
    return None


def pieces(_, folder):
    """Gradients and number of all-reduces with the batch in pieces, and as a whole; and when fewer are tried."""
    found = []
    for count in (1, 3):
        adjusted(folder, micro_batches=count, fewer_from=9)
        job = Job(Path(folder, str(count)), steps=1)
        job.model.module[1].p = 0.0
        reduced = []
        job.model.register_comm_hook(reduced, counting)
        job.run()
        grads = [parameter.grad.clone() for parameter in job.model.parameters()]
        found.append((grads, len(reduced)))
    adjusted(folder, micro_batches=4, fewer_from=9)
    hooks = holdfast.Hooks()
    hooks.resume()
    counts = []
    for _ in range(10):
        hooks.begin()
        counts.append(len(list(hooks.split_batch(torch.zeros(8)))))
        hooks.end()
    del os.environ["HOLDFAST_ADJUSTMENTS"]
    return found, counts


def counting(seen, bucket):
    """DDP's own all-reduce, counted."""
    seen.append(bucket.index())
    buffer = bucket.buffer().div_(dist.get_world_size())
    return (
        dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])
    )


def skipping(_, folder):
    """Batches are left out; then the job goes back to a checkpoint before a step."""
    Job(folder, epochs=1, every_steps=2).run()
    adjusted(
        folder, resume_before=4, skip=(StepWindow(3, 4),), reasons=("the loss was NaN at step 4",)
    )
    said = Said()
    job = Job(folder, epochs=1, every_steps=2)
    trace = job.run()
    del os.environ["HOLDFAST_ADJUSTMENTS"]
    return trace, job.loop.step, said.lines


def by_the_clock(rank, folder):
    """Train on ranks with different clocks; return the saved steps, and the steps with a sync."""
    synced = []
    plain = step_sync.StepSync.sync

    def sync(self, step, *arguments, **options):
        synced.append(step)
        return plain(self, step, *arguments, **options)

    step_sync.StepSync.sync = sync
    job = Job(folder, steps=600, every=0.5)
    if rank == 1:
        job.loop._saved_at -= 1000  # this rank would save at once
    real = job.checkpoint.save
    saved = []
    job.checkpoint.save = lambda step, **more: (saved.append(step), real(step, **more))
    for numbers, _ in job.loop:
        job.loop.report(loss=float(numbers.sum()))
        time.sleep(0.005 if rank else 0.0)
        dist.barrier()  # as gradients do it
    return saved, synced
