"""Evaluation on the side: of a snapshot, in a thread, while training goes on."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from holdfast.errors import BadValue
from holdfast.runtime.evaluate.guard import Evaluation, inner
from holdfast.runtime.evaluate.local import describe
from holdfast.runtime.evaluate.quiet import undisturbed
from holdfast.runtime.evaluate.result import EvalResult

_log = logging.getLogger("holdfast.evaluate")


class AsyncEvaluation(Evaluation):
    """As :class:`Evaluation`, of a copy of the model, while training goes on; the result bears the step of the copy.

    One evaluation is under way at most. All ranks call :meth:`start` at the same steps; :meth:`poll` is each rank's
    own affair, and a result may reach one rank some steps before another. The model must not communicate.

    Raises:
        BadValue: an option cannot be understood, or needs the forward of all ranks.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collective_forward:
            raise BadValue("AsyncEvaluation", why="a forward that communicates would meet training's collectives")
        for loader in self.loaders.values() if isinstance(self.loaders, Mapping) else [self.loaders]:
            _own_chance(loader)
        self._thread: threading.Thread | None = None
        self._done: deque[EvalResult] = deque()
        self._landed: deque[EvalResult] = deque()
        self._starts = 0
        #: Steps at which none was begun, as the one before was still under way.
        self.skipped: list[int] = []

    def start(self, step: int) -> bool:
        """Copy the model and begin; False, on every rank, where the evaluation before is not over on rank 0."""
        self._collect()
        if not self._may_begin():
            self.skipped.append(step)
            _log.warning("no evaluation at step %d: the one before is still under way", step)
            return False
        if self._thread is not None:
            self._thread.join(self._grace_s)  # it is over on rank 0, so that here only the result has to be read
            if self._thread.is_alive():
                _log.warning("rank %d takes no part in the evaluation at step %d: it is still in the one before",
                             self._meeting.rank, step)  # fmt: skip
                return True
        snapshot = copy.deepcopy(inner(self.model))
        stream = _side_stream()
        self._thread = threading.Thread(
            target=self._evaluate_copy, args=(step, snapshot, stream), name=f"evaluation-{step}", daemon=True
        )
        self._thread.start()
        return True

    def poll(self) -> EvalResult | None:
        """The oldest result that was not handed out yet, or None; does not wait."""
        self._collect()
        return self._landed.popleft() if self._landed else None

    def wait(self) -> EvalResult | None:
        """As :meth:`poll`, when the evaluation that is under way is over; it ends by its own limits."""
        if not self._done and not self._landed and self._thread is not None:
            self._thread.join(self._budget_s + 5 * self._grace_s)
        return self.poll()

    def run(self, step: int) -> EvalResult:
        """Begin, and wait for the result of this very step; one that did not come is reported as failed."""
        if not self.start(step):
            return EvalResult(step, troubles={self._meeting.rank: "the evaluation before is still under way"})
        while (result := self.wait()) is not None:
            if result.step == step:
                return result
        return EvalResult(step, troubles={self._meeting.rank: "it did not end in time"})

    def _may_begin(self) -> bool:
        """What rank 0 finds, so that all ranks begin or none does."""
        free = self._thread is None or not self._thread.is_alive()
        self._starts += 1
        key, table = f"start/{self._starts}", self._meeting.table
        if self._meeting.rank == 0:
            return table.decide(key, "yes" if free else "no") == "yes"
        return table.settle(key, None, lambda _: "no", time.monotonic() + self._grace_s, 0.0) == "yes"

    def _evaluate_copy(self, step: int, snapshot: Any, stream: torch.cuda.Stream | None) -> None:
        try:
            with undisturbed(snapshot, chance=False), torch.cuda.stream(stream) if stream else nullcontext():
                result = self._evaluate(step, snapshot)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to tell but the result
            result = EvalResult(step, troubles={self._meeting.rank: describe(error)})
        self._done.append(result)

    def _collect(self) -> None:
        """What has landed goes to log and sinks, in the thread that trains."""
        while self._done:
            result = self._done.popleft()
            self._tell(result)
            self._landed.append(result)


def _side_stream() -> torch.cuda.Stream | None:
    """A stream that begins when the copy is made."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def _own_chance(loader: Any) -> None:
    """Keep a DataLoader from drawing its seed out of the generator that training draws from at the same time."""
    if not isinstance(loader, DataLoader):
        return
    if loader.generator is None:
        loader.generator = torch.Generator()
    if isinstance(loader.sampler, RandomSampler) and loader.sampler.generator is None:
        loader.sampler.generator = loader.generator
