"""A training run: losses show effects of evaluation, steps show whether ranks diverged."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from holdfast.training.evaluate import DistributedEvalSampler, EvalResult, Evaluation

SIZES = {"long": 23, "short": 7}
BATCH = 4
STEPS = 4
EVERY = 2


def dataset(name: str) -> TensorDataset:
    generator = torch.Generator().manual_seed(SIZES[name])
    return TensorDataset(torch.randn(SIZES[name], 4, generator=generator))


def loaders(size: int = BATCH) -> dict[str, DataLoader[Any]]:
    data = {name: dataset(name) for name in SIZES}
    return {
        name: DataLoader(each, size, sampler=DistributedEvalSampler(each))
        for name, each in data.items()
    }


def squares(model: nn.Module, batch: Any) -> dict[str, Any]:
    (x,) = batch
    out = model(x)
    return {"square": out.square().sum(), "positive": ((out > 0).sum(), out.numel())}


def expected_metrics(model: nn.Module) -> dict[str, float]:
    """Return both metrics over all samples of both datasets, in one batch and one process."""
    copy = network(0)
    copy.load_state_dict(model.state_dict())
    copy.eval()
    with torch.no_grad():
        out = {name: copy(dataset(name).tensors[0]) for name in SIZES}
    return {
        f"{name}/{metric}": value
        for name, each in out.items()
        for metric, value in (
            ("square", each.double().square().mean().item()),
            ("positive", (each > 0).double().mean().item()),
        )
    }


def is_correct(result: EvalResult, expected: dict[str, float]) -> bool:
    """Return whether the result has exactly the expected metrics."""
    return result.metrics.keys() == expected.keys() and all(
        abs(value - expected[name]) < 1e-5 for name, value in result.metrics.items()
    )


def network(seed: int) -> nn.Module:
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    torch.set_rng_state(state)
    return model


def train(
    make: Callable[[nn.Module], Evaluation] | None, *, ddp: bool = False
) -> tuple[list[float], list[tuple[EvalResult, bool]]]:
    """Return the losses, which use three random generators, and results with their correctness."""
    torch.manual_seed(dist.get_rank())
    random.seed(dist.get_rank())
    np.random.seed(dist.get_rank())  # noqa: NPY002 - the global generator must be restored
    model = network(1)
    model[1].momentum = 0.3
    model[3].eval()  # a module that the user keeps in evaluation mode
    wrapped = DistributedDataParallel(model) if ddp else model  # the import of DDP takes seconds
    evaluation = make(wrapped) if make else None
    losses, results = [], []
    for step in range(1, STEPS + 1):
        scale = random.random() + np.random.rand()  # noqa: NPY002
        loss = (wrapped(torch.randn(6, 4)) - scale).square().mean()
        wrapped.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if not ddp:
                    dist.all_reduce(parameter.grad)
                parameter.sub_(0.05 * parameter.grad)
        losses.append(loss.item())
        for buffer in model.buffers():  # as DDP does before each step
            dist.broadcast(buffer, 0)
        if evaluation is not None and step % EVERY == 0:
            expected = expected_metrics(model)
            result = evaluation.run(step)
            results.append((result, is_correct(result, expected)))
            assert [module.training for module in model] == [True, True, True, False]
            assert torch.is_grad_enabled()
    together = torch.tensor([float(len(losses))])
    dist.all_reduce(together)  # training's own group still works, with all ranks
    assert together.item() == STEPS * dist.get_world_size()
    return losses, results


class Fault:
    """Metrics that fail with ``what`` on ``ranks`` from batch ``at`` on, ``times`` times."""

    def __init__(
        self, what: str, ranks: tuple[int, ...] = (1,), at: int = 1, times: int = 1
    ) -> None:
        self.what, self.at, self.times = what, at, times
        self.here = dist.get_rank() in ranks
        self.batch = 0

    def __call__(self, model: Any, batch: Any) -> dict[str, Any]:
        self.batch += 1
        if self.here and self.batch >= self.at and self.times > 0:
            self.times -= 1
            self._fail()
        if self.here and self.what == "too large" and len(batch[0]) > BATCH // 4:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")
        return squares(model, batch)

    def _fail(self) -> None:
        if self.what == "raises":
            raise ValueError("an invalid sample")
        if self.what == "memory":
            raise MemoryError
        if self.what == "sleeps":
            time.sleep(0.7)
        if self.what == "hangs":
            time.sleep(3)


def summary(results: list[tuple[EvalResult, bool]]) -> list[Any]:
    """Return what must be equal on all ranks."""
    return [
        (
            dict(result.metrics),
            result.coverage,
            result.attempts,
            result.degraded,
            result.failed,
            result.errors,
            ok,
        )
        for result, ok in results
    ]


def guarded(model: Any, fault: Any = None, **options: Any) -> Evaluation:
    options = {"budget": 30, "grace": 20} | options
    return Evaluation(model, loaders(), fault or squares, **options)
