"""The small deterministic job of ``holdfast chaos run``: CPU, gloo, bit-identical results.

Each rank appends what it did to ``trace-rank<r>.jsonl``, one record per line: losses, samples,
repeated steps. The file is copied into a scenario's folder and started there by ``holdfast run``
like a user's script; nothing imports it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import holdfast
from holdfast.core import settings
from holdfast.training.loop.micro_batches import split_batch

WIDTH = 16
RATE = 1e-2
SAMPLES = 96
BATCH = 4  # per rank


class SampleDataset(Dataset[tuple[Tensor, Tensor, int]]):
    """Sample ``i`` depends only on ``i``."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        rows = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(number))
        return rows[0], rows[1], number


class Trace:
    """Appends this rank's records, which survive any kill signal."""

    def __init__(self, rank: int, submission: int, generation: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._handle = os.open(f"trace-rank{rank}.jsonl", flags, 0o644)
        self._start = {"submission": submission, "generation": generation}

    def record(self, what: str, step: int, **more: Any) -> None:
        """Append one record in one write."""
        fact = {"what": what, "step": step, **self._start, **more}
        os.write(self._handle, json.dumps(fact).encode() + b"\n")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("ddp", "fsdp2", "zero1", "zero2"), default="ddp")
    parser.add_argument(
        "--submission", type=int, default=0, help="number of earlier submissions of the job"
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=6)
    parser.add_argument("--evaluate-every", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument(
        "--pace", type=float, default=0.02, help="minimum duration of a step in seconds"
    )
    parser.add_argument(
        "--synchronous", action="store_true", help="wait until a checkpoint is committed"
    )
    parser.add_argument(
        "--micro-batches", action="store_true", help="split batches as the recovery policy requests"
    )
    parser.add_argument(
        "--halved-from", type=int, help="split batches in two from this step on, unconditionally"
    )
    parser.add_argument(
        "--skip-steps", default="", help="steps whose batches are skipped, e.g. 15,16"
    )
    parser.add_argument(
        "--in-place", action="store_true", help="surviving ranks continue in their processes"
    )
    return parser.parse_args()


def build_model(mode: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build the model, with random numbers in every step (dropout), and its optimizer."""
    plain = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH))
    if mode.startswith("zero"):
        return build_engine(plain, stage=int(mode.removeprefix("zero")))
    model: nn.Module = plain
    if mode == "ddp":
        model = nn.parallel.DistributedDataParallel(plain)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (plain[0], plain[3], plain):
            fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=RATE)


def build_engine(plain: nn.Module, stage: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build a DeepSpeed engine with torch's optimizer, which needs no compilation."""
    import deepspeed  # type: ignore[import-untyped]  # noqa: PLC0415 - the import takes seconds

    # On CPU, DeepSpeed would compile this first.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed("gloo")
    optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": sys.maxsize,
    }
    engine, *_ = deepspeed.initialize(model=plain, optimizer=optimizer, config=config)
    return engine, optimizer


def evaluate(model: nn.Module) -> float:
    """Return the mean loss over 4 samples per rank; draws no random numbers."""
    mine = [SampleDataset()[number] for number in range(dist.get_rank(), SAMPLES, 12)][:4]
    model.eval()
    with torch.no_grad():
        total = sum(
            (nn.functional.mse_loss(model(x[None]), y[None]) for x, y, _ in mine), torch.zeros(())
        )
    model.train()
    dist.all_reduce(total)
    return float(total)


def hash_weights(model: nn.Module) -> str:
    """Return the hash of this rank's exact weights."""
    digest = hashlib.sha256()
    module: Any = model.module if hasattr(model, "module") else model
    for name, value in sorted(module.state_dict().items()):
        mine = value.to_local() if hasattr(value, "to_local") else value
        digest.update(name.encode() + mine.numpy().tobytes())
    return digest.hexdigest()


def is_engine(model: nn.Module) -> bool:
    """Return whether DeepSpeed performs backward pass and optimizer step."""
    return hasattr(model, "backward")


def main() -> None:
    """Run the job."""
    options = parse_arguments()
    if options.in_place:
        holdfast.in_place(train, options)
    else:
        train(options)
    dist.destroy_process_group()  # only now: the model of `train` must be freed before its group


def train(options: argparse.Namespace) -> None:
    """Train from the creation of the process group to the last step."""
    dist.init_process_group("gloo")
    trace = Trace(
        dist.get_rank(), options.submission, settings.read_count("TORCHELASTIC_RESTART_COUNT")
    )
    torch.manual_seed(0)
    model, optimizer = build_model(options.mode)
    torch.manual_seed(dist.get_rank())  # seeds dropout
    sampler: DistributedSampler[Any] = DistributedSampler(SampleDataset(), shuffle=True, seed=0)
    loader = DataLoader(SampleDataset(), BATCH, sampler=sampler, num_workers=options.workers)

    checkpoint = holdfast.Checkpoint(
        "checkpoints",
        model=model,
        optimizer=optimizer,
        every_steps=options.save_every,
        asynchronous=not options.synchronous,
    )
    checkpoint.after_commit.append(lambda _, manifest: trace.record("saved", manifest.step))
    loop = holdfast.loop(loader, checkpoint, steps=options.steps, model=model)
    skipped = {int(number) for number in options.skip_steps.split(",") if number}
    started = False
    for batch in loop:
        if not started:
            started = True
            trace.record("resumed", loop.step - 1, pid=os.getpid())
        if loop.step in skipped:
            continue
        step(loop, model, optimizer, batch, trace, options)
        time.sleep(options.pace)
        if loop.step % options.evaluate_every == 0:
            with holdfast.phase("evaluation", budget="8s"):
                trace.record("evaluating", loop.step)
                trace.record("evaluated", loop.step, loss=evaluate(model).hex())
        if loop.step % options.save_every == 0:
            trace.record("saving", loop.step)
    if not started:
        trace.record("resumed", loop.step, pid=os.getpid())
    trace.record("done", loop.step, weights=hash_weights(model))


def step(
    loop: Any,
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    trace: Trace,
    options: argparse.Namespace,
) -> None:
    """Run one step.

    It is recorded before the gradient exchange, so no other rank can be ahead of the record.
    """
    optimizer.zero_grad()
    total = 0.0
    for (x, y, _), weight, last in split_into_micro_batches(loop, model, batch, options):
        loss = weight * nn.functional.mse_loss(model(x), y)
        total += loss.item()  # noqa: PERF010 - traced for every step
        if last:
            trace.record("step", loop.step, loss=total.hex(), samples=batch[2].tolist())
        if is_engine(model):
            model.backward(loss)
            model.step()  # only steps after the last part
        else:
            loss.backward()
    loop.report(loss=total)
    if not is_engine(model):
        optimizer.step()


def split_into_micro_batches(
    loop: Any, model: Any, batch: Any, options: argparse.Namespace
) -> Iterator[tuple[Any, float, bool]]:
    """Yield the parts of a batch, the weight of each, and whether it is the last."""
    if not options.micro_batches:
        yield batch, 1.0, True
        return
    halved = options.halved_from is not None and loop.step >= options.halved_from
    processed = 0
    for part, weight in split_batch(batch, 2, model) if halved else loop.parts(batch):
        processed += len(part[2])
        yield part, weight, processed == len(batch[2])


if __name__ == "__main__":
    main()
