"""Evaluate a snapshot of the model in a thread while training continues."""

from __future__ import annotations

import copy
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from holdfast.core.errors import InvalidValue
from holdfast.training.evaluate.guard import Evaluation, unwrap_ddp
from holdfast.training.evaluate.local import describe_error
from holdfast.training.evaluate.preserved_state import preserve_state
from holdfast.training.evaluate.result import EvalResult
from holdfast.training.script_end import call_at_script_end

_log = logging.getLogger("holdfast.evaluate")


class AsyncEvaluation(Evaluation):
    """As :class:`Evaluation`, of a copy of the model, concurrently with training.

    A result has the step of the copy. At most one evaluation runs at a time. All ranks call
    :meth:`start` at the same steps; :meth:`poll` is independent on each rank, and a result may
    arrive on one rank some steps before another. The model must not communicate.

    Raises:
        InvalidValue: an option is invalid, or needs the forward of all ranks.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collective_forward:
            raise InvalidValue(
                "AsyncEvaluation",
                why="a forward that communicates would interfere with training's collectives",
            )
        loaders = self.loaders.values() if isinstance(self.loaders, Mapping) else [self.loaders]
        for loader in loaders:
            _separate_generator(loader)
        self._thread: threading.Thread | None = None
        #: Results not yet reported, and results not yet returned to the caller.
        self._finished: deque[EvalResult] = deque()
        self._reported: deque[EvalResult] = deque()
        self._starts = 0
        #: Steps without an evaluation, because the previous one was still running.
        self.skipped: list[int] = []
        call_at_script_end(self._finish)

    def start(self, step: int) -> bool:
        """Copy the model and start; return False, on all ranks, if rank 0 is still evaluating."""
        self._report_finished()
        if not self._may_start():
            self.skipped.append(step)
            _log.warning("skipped evaluation at step %d: the previous one is still running", step)
            return False
        if self._thread is not None:
            # It has finished on rank 0, so that only the result remains to be read here.
            self._thread.join(self._grace_s)
            if self._thread.is_alive():
                _log.warning(
                    "rank %d does not join the evaluation at step %d: it is still in the previous",
                    self._agreement.rank,
                    step,
                )
                return True
        snapshot = copy.deepcopy(unwrap_ddp(self.model))
        self._thread = threading.Thread(
            target=self._evaluate_copy,
            args=(step, snapshot, _side_stream()),
            name=f"evaluation-{step}",
            daemon=True,
        )
        self._thread.start()
        return True

    def poll(self) -> EvalResult | None:
        """Return the oldest result not returned yet, or None; does not wait."""
        self._report_finished()
        return self._reported.popleft() if self._reported else None

    def wait(self) -> EvalResult | None:
        """Wait for the running evaluation, which ends by its own timeouts; return as `poll`."""
        if not self._finished and not self._reported and self._thread is not None:
            self._thread.join(self._budget_s + 5 * self._grace_s)
        return self.poll()

    def _finish(self) -> None:
        """Wait for the last evaluation and report it, unless an exception ended the script.

        A thread that is in torch's code when the interpreter ends aborts the process.
        """
        if getattr(sys, "last_value", None) is None:
            self.wait()

    def run(self, step: int) -> EvalResult:
        """Start, and wait for the result of this step; a failed result if there is none."""
        rank = self._agreement.rank
        if not self.start(step):
            return EvalResult(step, errors={rank: "the previous evaluation is still running"})
        while (result := self.wait()) is not None:
            if result.step == step:
                return result
        return EvalResult(step, errors={rank: "it did not finish in time"})

    def _may_start(self) -> bool:
        """Return what rank 0 decides, so that all ranks start or none does."""
        is_idle = self._thread is None or not self._thread.is_alive()
        self._starts += 1
        key, table = f"start/{self._starts}", self._agreement.table
        if self._agreement.rank == 0:
            return table.propose(key, "yes" if is_idle else "no") == "yes"
        deadline = time.monotonic() + self._grace_s
        return table.agree(key, None, lambda _: "no", deadline, 0.0) == "yes"

    def _evaluate_copy(self, step: int, snapshot: Any, stream: torch.cuda.Stream | None) -> None:
        on_stream = torch.cuda.stream(stream) if stream else nullcontext()
        try:
            with preserve_state(snapshot, rng=False), on_stream:
                result = self._evaluate(step, snapshot)
        except Exception as error:  # noqa: BLE001 - a thread reports errors only by its result
            result = EvalResult(step, errors={self._agreement.rank: describe_error(error)})
        self._finished.append(result)

    def _report_finished(self) -> None:
        """Write finished results to log and sinks, in the training thread."""
        while self._finished:
            result = self._finished.popleft()
            self._report(result)
            self._reported.append(result)


def _side_stream() -> torch.cuda.Stream | None:
    """Return a CUDA stream that starts after the copy was made; None without CUDA."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def _separate_generator(loader: Any) -> None:
    """Prevent a DataLoader from drawing its seed from the generator that training uses."""
    if not isinstance(loader, DataLoader):
        return
    if loader.generator is None:
        loader.generator = torch.Generator()
    if isinstance(loader.sampler, RandomSampler) and loader.sampler.generator is None:
        loader.sampler.generator = loader.generator
