"""One rank's share of an evaluation: sums over its batches, as far as it gets."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import InvalidValue
from holdfast.training.evaluate.batch_sources import BatchSource
from holdfast.training.evaluate.decision import DatasetTally, RankOutcome

#: The user's function of model and batch: each metric's (sum, count), or a sum over the samples.
MetricFunction = Callable[[Any, Any], Mapping[str, Any]]
#: Why a share is incomplete after the budget.
OUT_OF_TIME = "budget exhausted"

_OWN_PACKAGE = str(Path(__file__).parent)


class MetricSums:
    """Sums and counts of metrics. Those on a device are summed there; :meth:`fetch` copies once."""

    def __init__(self) -> None:
        self.seen = 0
        self._sums: dict[str, tuple[Any, Any]] = {}

    def add(self, values: Mapping[str, Any], samples: int) -> None:
        """Add the metrics of a batch of ``samples``: all, or none if one is invalid."""
        pairs = {name: _as_pair(name, value, samples) for name, value in values.items()}
        for name, (total, count) in pairs.items():
            before = self._sums.get(name)
            self._sums[name] = (
                (total, count) if before is None else (before[0] + total, before[1] + count)
            )
        self.seen += samples

    def fetch(self) -> dict[str, tuple[float, float]]:
        """Return sum and count of each metric as numbers."""
        return {name: (float(total), float(count)) for name, (total, count) in self._sums.items()}


@dataclass(frozen=True)
class EvaluationTask:
    """How to evaluate a batch, at which size, and until when to start one (monotonic clock)."""

    model: Any
    metrics: MetricFunction
    samples: Callable[[Any], int]
    halvings: int
    deadline: float


#: Evaluates one dataset; returns its sums, and what went wrong.
SourceEvaluator = Callable[[BatchSource], tuple[DatasetTally, str]]


def evaluate_sources(
    sources: Iterable[BatchSource], before: RankOutcome, evaluate_source: SourceEvaluator
) -> RankOutcome:
    """Evaluate the datasets that are not complete in ``before``, until an error occurs.

    If an earlier attempt got further with a dataset than this one, its sums are kept.
    """
    tallies, error = dict(before.tallies), ""
    for source in sources:
        known = tallies.setdefault(
            source.name, DatasetTally(expected=source.expected, whole=source.whole)
        )
        if known.complete or error:
            continue
        tally, error = evaluate_source(source)
        if tally.complete or tally.seen >= known.seen:
            tallies[source.name] = tally
    if error:
        release_memory()
    return RankOutcome(tallies, error)


def evaluate_locally(source: BatchSource, task: EvaluationTask) -> tuple[DatasetTally, str]:
    """Return the sums over one dataset, and what went wrong; never raises."""
    sums, error = MetricSums(), ""
    try:
        for batch in source.create_loader(task.halvings):
            if time.monotonic() > task.deadline:
                error = OUT_OF_TIME
                break
            sums.add(task.metrics(task.model, batch), task.samples(batch))
    except Exception as raised:  # noqa: BLE001 - no failure of an evaluation may end training
        error = describe_error(raised)
    return create_tally(source, sums, error)


def create_tally(source: BatchSource, sums: MetricSums, error: str) -> tuple[DatasetTally, str]:
    """Return the tally of a dataset, and what went wrong; fetching the sums may fail, too."""
    try:
        fetched = sums.fetch()
    except Exception as raised:  # noqa: BLE001 - no failure of an evaluation may end training
        tally = DatasetTally(expected=source.expected, whole=source.whole)
        return tally, error or describe_error(raised)
    expected = sums.seen if source.expected is None and not error else source.expected
    complete = not error
    return DatasetTally(sums.seen, expected, source.whole, complete, fetched), error


def describe_error(error: BaseException) -> str:
    """Return one line: the error, and the line of the user's code that raised it."""
    text = str(error).strip().partition("\n")[0][:200]
    kind = "out of memory" if is_out_of_memory(error) else type(error).__name__
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OWN_PACKAGE)
    ]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{kind}: {text}{where}" if text else f"{kind}{where}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether device or host memory was exhausted, under each torch version's error name."""
    kinds = (
        MemoryError,
        getattr(torch, "OutOfMemoryError", MemoryError),
        torch.cuda.OutOfMemoryError,
    )
    return isinstance(error, kinds)


def release_memory() -> None:
    """Free what a failed attempt held, for the smaller batch."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _as_pair(name: str, value: Any, samples: int) -> tuple[Any, Any]:
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise InvalidValue(
                f"metric {name!r}",
                why=f"it has {len(value)} values",
                next_step="return (sum, count)",
            )
        return _as_number(name, value[0]), _as_number(name, value[1])
    return _as_number(name, value), samples


def _as_number(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise InvalidValue(
                f"metric {name!r}",
                why=f"it is a tensor of {value.numel()} elements",
                next_step="sum over the samples, and return (sum, count)",
            )
        return float(value) if value.device.type == "cpu" else value.detach().double().reshape(())
    return float(value)
