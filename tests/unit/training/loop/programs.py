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
    """Sample i is i and a vector derived from it."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return index, torch.full((4,), index / 48)


class LogLines(logging.Handler):
    """Collects log messages."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("holdfast").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def set_adjustments(folder, **fields):
    """Set adjustments for this process."""
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
        """Train; return the number, loss and samples of each step."""
        for numbers, x in self.loop:
            self.optimizer.zero_grad()
            total = 0.0
            for part, weight in self.loop.split_batch(x):
                part_loss = weight * self.model(part).square().mean()
                part_loss.backward()
                total += part_loss.item()
            self.optimizer.step()
            self.loop.report(loss=total if loss is None else loss(self.loop.step))
            self.trace.append((self.loop.step, total.hex(), numbers.tolist()))
            if self.loop.step == stop_after:
                self.checkpoint.wait()
                break
        return self.trace


def interrupt_and_resume(_, folder):
    """Return traces of an undisturbed run, an interrupted one, and its continuations."""
    uninterrupted = Job(Path(folder, "whole"), epochs=3, every_steps=4).run()
    first = Job(Path(folder, "broken"), epochs=3, every_steps=4, workers=2).run(stop_after=10)
    job = Job(Path(folder, "broken"), epochs=3, every_steps=4, workers=2)
    second = job.run()
    saved = sorted(path.name for path in Path(folder, "broken", "checkpoints").glob("step-*"))
    after = Job(Path(folder, "broken"), epochs=3).run()
    return uninterrupted, first, second, saved, after


def resume_elastically(_, folder, keep):
    """Resume from the checkpoint of other ranks if it exists, else train until the checkpoint of step 3."""
    log = LogLines()
    resumes = Path(folder, "checkpoints").exists()
    dist.barrier()
    job = Job(folder, batch=4, epochs=1, every_steps=3, loop={"keep": keep})
    trace = job.run() if resumes else job.run(stop_after=4)[:3]  # step 4 starts but never ends
    return trace, log.lines


def record_learning_rates(_, folder, options, kind, steps):
    """Train up to ``steps``; return each step's learning rate, the log, and the newest manifest's values."""
    log = LogLines()
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
    return seen, log.lines, checkpoint_manifest.read_manifest(newest).values


def report_bad_loss(rank, folder, what, step):
    """Give one rank a bad loss; return this rank's error, its steps, and the newest checkpoint."""
    value = {"nan": math.nan, "inf": math.inf}.get(what, 50.0)
    job = Job(folder, steps=200, every_steps=50)
    if rank == 1 or what == "spike":
        loss = lambda now: value if now >= step else 1.0 + 0.01 * (now % 7)  # noqa: E731
    else:
        loss = lambda now: 1.0 + 0.01 * (now % 7)  # noqa: E731
    try:
        job.run(loss=loss)
    except HoldfastError as error:
        job.checkpoint.wait()  # the pending save
        dist.barrier()
        newest = max(path.name for path in Path(folder, "checkpoints").glob("step-*"))
        return type(error).__name__, error.first, error.last, str(error), newest
    return None


def compare_micro_batches(_, folder):
    """Return gradients and all-reduce counts with and without micro-batches, and micro-batch counts by step."""
    gradients_and_counts = []
    for count in (1, 3):
        set_adjustments(folder, micro_batches=count, fewer_from=9)
        job = Job(Path(folder, str(count)), steps=1)
        job.model.module[1].p = 0.0
        reduced = []
        job.model.register_comm_hook(reduced, count_all_reduce)
        job.run()
        grads = [parameter.grad.clone() for parameter in job.model.parameters()]
        gradients_and_counts.append((grads, len(reduced)))
    set_adjustments(folder, micro_batches=4, fewer_from=9)
    hooks = holdfast.Hooks()
    hooks.resume()
    counts = []
    for _ in range(10):
        hooks.begin()
        counts.append(len(list(hooks.split_batch(torch.zeros(8)))))
        hooks.end()
    del os.environ["HOLDFAST_ADJUSTMENTS"]
    return gradients_and_counts, counts


def count_all_reduce(seen, bucket):
    """Count DDP's all-reduces."""
    seen.append(bucket.index())
    buffer = bucket.buffer().div_(dist.get_world_size())
    return (
        dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])
    )


def skip_and_roll_back(_, folder):
    """Apply skipped batches and a rollback to a checkpoint before a step."""
    Job(folder, epochs=1, every_steps=2).run()
    set_adjustments(
        folder, resume_before=4, skip=(StepWindow(3, 4),), reasons=("the loss was NaN at step 4",)
    )
    log = LogLines()
    job = Job(folder, epochs=1, every_steps=2)
    trace = job.run()
    del os.environ["HOLDFAST_ADJUSTMENTS"]
    return trace, job.loop.step, log.lines


def save_by_time(rank, folder):
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
        dist.barrier()  # as the gradient all-reduce does
    return saved, synced
