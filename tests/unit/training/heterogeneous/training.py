"""Train a small language model on texts of different lengths, in one process or with unequal shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import holdfast

STEPS, LETTERS, BATCH = 3, 11, 12
#: Micro-batch sizes per step for 2 and for 3 ranks; two micro-batches per rank.
SHARES = {2: ((5, 4), (2, 1)), 3: ((5, 2), (2, 1), (1, 1))}
Batch = list[torch.Tensor]


class Model(torch.nn.Module):
    """Predict the next letter from the previous letters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.letters = torch.nn.Embedding(LETTERS, 16)
        self.memory = torch.nn.Linear(16, 32)
        self.out = torch.nn.Linear(32, LETTERS)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        past = self.letters(texts).cumsum(1)
        return self.out(torch.tanh(self.memory(past)))


def texts() -> list[torch.Tensor]:
    """Return texts of 2 to 60 letters; short and long texts use different letters, so that weights matter."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(2, 60, (STEPS * BATCH,), generator=generator).tolist()
    return [
        torch.randint(0, 4 if length < 20 else LETTERS, (length,), generator=generator)
        for length in lengths
    ]


def loss_of(
    model: Callable[[torch.Tensor], torch.Tensor], batch: Batch, reduction: str
) -> torch.Tensor:
    padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=0)
    targets = torch.nn.utils.rnn.pad_sequence(
        [text[1:] for text in batch], batch_first=True, padding_value=-100
    )
    logits = model(padded[:, :-1])
    return cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction
    )


def tokens(batch: Batch) -> int:
    return sum(len(text) - 1 for text in batch)


def train_single_process() -> list[torch.Tensor]:
    """Return weights and last gradients of one process that trains on the full batch."""
    model, data = Model(), texts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sampler = holdfast.HeterogeneousSampler(data, [[BATCH]], rank=0)
    for batch in sampler:
        optimizer.zero_grad()
        loss_of(model, [data[at] for at in batch], "mean").backward()
        optimizer.step()
    return _all(model)


def train_on_ranks(rank: int, kind: str, how: str) -> list[torch.Tensor]:
    """Return the same from ranks with unequal shares. ``how``: tokens, samples, nothing, or sum."""
    world = dist.get_world_size()
    data, model = texts(), Model()
    step = _prepared(model, kind)
    sampler = holdfast.HeterogeneousSampler(data, SHARES[world], rank=rank)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=list)
    for batches in sampler.steps(loader):
        step(batches, _weights(batches, how), how)
    return step.weights()


def _weights(batches: Sequence[Batch], how: str) -> Sequence[float]:
    if how == "nothing":  # common scripts average over micro-batches and ranks
        return [1 / len(batches)] * len(batches)
    counts = [len(batch) if how == "samples" else tokens(batch) for batch in batches]
    return holdfast.loss_weight(counts, reduction="sum" if how == "sum" else "mean")


class Step:
    """A training step of DDP or FSDP2."""

    def __init__(self, model: torch.nn.Module, unsharded: torch.nn.Module) -> None:
        self.model, self.unsharded = model, unsharded
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def __call__(self, batches: Sequence[Batch], weights: Sequence[float], how: str) -> None:
        self.optimizer.zero_grad()
        for at, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
            self.sync(last=at == len(batches) - 1)
            (loss_of(self.model, batch, "sum" if how == "sum" else "mean") * weight).backward()
        self.optimizer.step()

    def sync(self, *, last: bool) -> None:
        if isinstance(self.model, DistributedDataParallel):
            self.model.require_backward_grad_sync = last  # as no_sync does
        else:
            self.model.set_requires_gradient_sync(last)

    def weights(self) -> list[torch.Tensor]:
        return _all(self.unsharded)


class Engine:
    """A training step of DeepSpeed."""

    def __init__(self, model: Model, stage: int) -> None:
        import deepspeed

        settings = {
            "train_micro_batch_size_per_gpu": 1,  # sizes differ; this value is not used
            "gradient_accumulation_steps": 1,  # set explicitly below, because it may change
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "steps_per_print": sys.maxsize,
        }
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)

    def __call__(self, batches: Sequence[Batch], weights: Sequence[float], how: str) -> None:
        for at, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
            self.engine.set_gradient_accumulation_boundary(at == len(batches) - 1)
            self.engine.backward(
                loss_of(self.engine, batch, "sum" if how == "sum" else "mean") * weight
            )
            self.engine.step()

    def weights(self) -> list[torch.Tensor]:
        import deepspeed

        shares = list(self.engine.module.parameters())
        with deepspeed.zero.GatheredParameters(shares):
            return [each.detach().clone() for each in shares]


def _prepared(model: Model, kind: str) -> Any:
    if kind.startswith("zero"):
        return Engine(model, int(kind[-1]))
    if kind == "fsdp2":
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model.memory, mesh=mesh)
        return Step(fully_shard(model, mesh=mesh), model)
    return Step(DistributedDataParallel(model), model)


def _all(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return full weights and gradients."""
    tensors = [*model.parameters(), *(each.grad for each in model.parameters())]
    return [
        getattr(each, "full_tensor", lambda each=each: each)().detach().clone() for each in tensors
    ]


def train_cases(rank: int, cases: list[tuple[str, str]]) -> list[list[torch.Tensor]]:
    """Return the results of each case."""
    if any(kind.startswith("zero") for kind, _ in cases):
        os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": str(rank)}
        import deepspeed

        deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # avoid compiling it
        deepspeed.init_distributed("gloo")
    return [train_on_ranks(rank, kind, how) for kind, how in cases]


def relative_error(own: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Return the relative error over all tensors."""
    pairs = list(zip(own, exact, strict=True))
    off = sum((one - other).double().square().sum().item() for one, other in pairs)
    return (off / sum(other.double().square().sum().item() for _, other in pairs)) ** 0.5


def errors(own: list[torch.Tensor]) -> tuple[float, float]:
    """Return relative errors of the weight changes over 3 steps and of the last gradients (0 without gradients)."""
    exact, begin = train_single_process(), list(Model().parameters())
    count = len(begin)
    moved = relative_error(
        [a - b for a, b in zip(own[:count], begin, strict=True)],
        [a - b for a, b in zip(exact[:count], begin, strict=True)],
    )
    return moved, relative_error(own[count:], exact[count:]) if len(own) > count else 0.0
