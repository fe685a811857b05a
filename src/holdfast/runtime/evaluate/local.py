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

from holdfast.errors import BadValue
from holdfast.runtime.evaluate.batches import Source
from holdfast.runtime.evaluate.decision import Outcome, Tally

#: What a user's metric function gives for one batch: for each metric its sum and count, or a sum over the samples.
Metrics = Callable[[Any, Any], Mapping[str, Any]]

_OWN = str(Path(__file__).parent)


class Sums:
    """Sums and counts of metrics. What lies on a device is summed there, and fetched once, by :meth:`fetch`."""

    def __init__(self) -> None:
        self.seen = 0
        self._sums: dict[str, tuple[Any, Any]] = {}

    def add(self, values: Mapping[str, Any], samples: int) -> None:
        """Add what one batch of so many samples gave: all of it, or nothing where it cannot be read."""
        pairs = {name: _pair(name, value, samples) for name, value in values.items()}
        for name, (total, count) in pairs.items():
            before = self._sums.get(name)
            self._sums[name] = (total, count) if before is None else (before[0] + total, before[1] + count)
        self.seen += samples

    def fetch(self) -> dict[str, tuple[float, float]]:
        """All of them as numbers."""
        return {name: (float(total), float(count)) for name, (total, count) in self._sums.items()}


@dataclass(frozen=True)
class Job:
    """What is to be done with each batch, at which size, and until when (monotonic clock) something may be begun."""

    model: Any
    metrics: Metrics
    samples: Callable[[Any], int]
    halvings: int
    deadline: float


def work(sources: Iterable[Source], job: Job, before: Outcome) -> Outcome:
    """Evaluate the datasets that are not complete in ``before``, until something goes wrong.

    Where this try gets less far with a dataset than an earlier one, the earlier one's sums stay.
    """
    tallies, trouble = dict(before.tallies), ""
    for source in sources:
        known = tallies.setdefault(source.name, Tally(expected=source.expected, whole=source.whole))
        if known.complete or trouble:
            continue
        tally, trouble = _one(source, job)
        if tally.complete or tally.seen >= known.seen:
            tallies[source.name] = tally
    if trouble:
        free_memory()
    return Outcome(tallies, trouble)


def _one(source: Source, job: Job) -> tuple[Tally, str]:
    """The sums over one dataset, and what went wrong in it; no exception leaves."""
    sums, trouble = Sums(), ""
    try:
        for batch in source.loader(job.halvings):
            if time.monotonic() > job.deadline:
                trouble = "its time was over"
                break
            sums.add(job.metrics(job.model, batch), job.samples(batch))
    except Exception as error:  # noqa: BLE001 - whatever fails in evaluation must not end training
        trouble = describe(error)
    return tally_of(source, sums, trouble)


def tally_of(source: Source, sums: Sums, trouble: str) -> tuple[Tally, str]:
    """What was summed, with what is known of the dataset; fetching the sums may be what fails."""
    try:
        fetched = sums.fetch()
    except Exception as error:  # noqa: BLE001 - errors of a device are told by the first call that waits for it
        return Tally(expected=source.expected, whole=source.whole), trouble or describe(error)
    expected = sums.seen if source.expected is None and not trouble else source.expected
    return Tally(sums.seen, expected, source.whole, complete=not trouble, sums=fetched), trouble


def describe(error: BaseException) -> str:
    """One line: what was raised, and the line of the user's in which it was."""
    text = str(error).strip().partition("\n")[0][:200]
    kind = "out of memory" if is_out_of_memory(error) else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{kind}: {text}{where}" if text else f"{kind}{where}"


def is_out_of_memory(error: BaseException) -> bool:
    """Of the device or of the host; torch names the device's differently over its versions."""
    kinds = (MemoryError, getattr(torch, "OutOfMemoryError", MemoryError), torch.cuda.OutOfMemoryError)
    return isinstance(error, kinds)


def free_memory() -> None:
    """Give back what the failed try held: a smaller batch needs it."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _pair(name: str, value: Any, samples: int) -> tuple[Any, Any]:
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise BadValue(f"metric {name!r}", why=f"it is {len(value)} values", next_step="give (sum, count)")
        return _number(name, value[0]), _number(name, value[1])
    return _number(name, value), samples


def _number(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise BadValue(f"metric {name!r}", why=f"it is a tensor of {value.numel()} elements",
                           next_step="sum over the samples, and give (sum, count)")  # fmt: skip
        return float(value) if value.device.type == "cpu" else value.detach().double().reshape(())
    return float(value)
