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
from holdfast import settings
from holdfast.runtime.loop.parts import parts

WIDTH = 16
RATE = 1e-2
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

    def __init__(self, rank: int, submission: int, generation: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._handle = os.open(f"trace-rank{rank}.jsonl", flags, 0o644)
        self._start = {"submission": submission, "generation": generation}

    def note(self, what: str, step: int, **more: Any) -> None:
        """One line, in one write."""
        fact = {"what": what, "step": step, **self._start, **more}
        os.write(self._handle, json.dumps(fact).encode() + b"\n")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("ddp", "fsdp2", "zero1", "zero2"), default="ddp")
    parser.add_argument("--submission", type=int, default=0, help="how often the job was submitted before")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=6)
    parser.add_argument("--evaluate-every", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0, help="loader processes of each rank")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds that a step takes at least")
    parser.add_argument("--synchronous", action="store_true", help="training waits until a checkpoint is declared")
    parser.add_argument("--parts", action="store_true", help="batches in as many pieces as the policy asks for")
    parser.add_argument("--halved-from", type=int, help="in two pieces from this step on, whatever it asks for")
    parser.add_argument("--leave-out", default="", help="steps whose batches are left out, as 15,16")
    parser.add_argument("--in-place", action="store_true", help="survivors of a dead rank go on in their processes")
    return parser.parse_args()


def made(mode: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model, with numbers drawn at random in every step, as dropout does; and what optimizes it."""
    plain = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH))
    if mode.startswith("zero"):
        return engine(plain, stage=int(mode.removeprefix("zero")))
    model: nn.Module = plain
    if mode == "ddp":
        model = nn.parallel.DistributedDataParallel(plain)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (plain[0], plain[3], plain):
            fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=RATE)


def engine(plain: nn.Module, stage: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model in DeepSpeed's hands, with torch's optimizer, for which nothing has to be compiled."""
    import deepspeed  # type: ignore[import-untyped] # noqa: PLC0415 - seconds, for those who want it alone

    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # which it would compile first, on CPUs
    deepspeed.init_distributed("gloo")
    optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE)
    wanted = {
        "train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True, "steps_per_print": sys.maxsize,
    }  # fmt: skip
    made, *_ = deepspeed.initialize(model=plain, optimizer=optimizer, config=wanted)
    return made, optimizer


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
    whole: Any = model.module if hasattr(model, "module") else model
    for name, value in sorted(whole.state_dict().items()):
        mine = value.to_local() if hasattr(value, "to_local") else value
        found.update(name.encode() + mine.numpy().tobytes())
    return found.hexdigest()


def is_engine(model: nn.Module) -> bool:
    """Whether DeepSpeed does the backward pass and the optimizer's step."""
    return hasattr(model, "backward")


def main() -> None:
    """The whole job."""
    options = parse_arguments()
    if options.in_place:
        holdfast.in_place(train, options)
    else:
        train(options)


def train(options: argparse.Namespace) -> None:
    """From the making of the group to its end."""
    dist.init_process_group("gloo")
    trace = Trace(dist.get_rank(), options.submission, settings.count("TORCHELASTIC_RESTART_COUNT"))
    torch.manual_seed(0)
    model, optimizer = made(options.mode)
    torch.manual_seed(dist.get_rank())  # of dropout
    sampler: DistributedSampler[Any] = DistributedSampler(Samples(), shuffle=True, seed=0)
    loader = DataLoader(Samples(), BATCH, sampler=sampler, num_workers=options.workers)

    checkpoint = holdfast.Checkpoint(
        "checkpoints", model=model, optimizer=optimizer, every_steps=options.save_every,
        asynchronous=not options.synchronous,
    )  # fmt: skip
    checkpoint.after_commit.append(lambda _, manifest: trace.note("saved", manifest.step))
    loop = holdfast.loop(loader, checkpoint, steps=options.steps, model=model)
    left_out = {int(number) for number in options.leave_out.split(",") if number}
    begun = False
    for batch in loop:
        if not begun:
            begun = True
            trace.note("resumed", loop.step - 1, pid=os.getpid())
        if loop.step in left_out:
            continue
        step(loop, model, optimizer, batch, trace, options)
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
    loop: Any, model: Any, optimizer: torch.optim.Optimizer, batch: Any, trace: Trace, options: argparse.Namespace
) -> None:
    """One step; it is noted before gradients meet, so that no other rank can be further without that line."""
    optimizer.zero_grad()
    total = 0.0
    for (x, y, _), weight, last in pieces_of(loop, model, batch, options):
        loss = weight * nn.functional.mse_loss(model(x), y)
        total += loss.item()  # noqa: PERF010 - the trace has it of every step
        if last:
            trace.note("step", loop.step, loss=total.hex(), samples=batch[2].tolist())
        if is_engine(model):
            model.backward(loss)
            model.step()  # which steps after the last piece alone
        else:
            loss.backward()
    loop.report(loss=total)
    if not is_engine(model):
        optimizer.step()


def pieces_of(loop: Any, model: Any, batch: Any, options: argparse.Namespace) -> Iterator[tuple[Any, float, bool]]:
    """The pieces of a batch, the share of each, and whether it is the last."""
    if not options.parts:
        yield batch, 1.0, True
        return
    halved = options.halved_from is not None and loop.step >= options.halved_from
    seen = 0
    for piece, weight in parts(batch, 2, model) if halved else loop.parts(batch):
        seen += len(piece[2])
        yield piece, weight, seen == len(batch[2])


if __name__ == "__main__":
    main()
