"""The guard around evaluation: tries, agrees with the other ranks, tries again with smaller batches, and goes on."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import Any

import torch.distributed as dist
from msgspec.structs import replace
from torch.nn.parallel import DataParallel, DistributedDataParallel

from holdfast.errors import BadValue
from holdfast.runtime.evaluate.batches import Loader, Source, size_of
from holdfast.runtime.evaluate.decision import Decision, Outcome, as_complete_as
from holdfast.runtime.evaluate.in_step import InStep
from holdfast.runtime.evaluate.local import Job, Metrics, work
from holdfast.runtime.evaluate.meeting import Meeting
from holdfast.runtime.evaluate.quiet import undisturbed
from holdfast.runtime.evaluate.result import EvalResult, result_of
from holdfast.runtime.recorder import phase, seconds
from holdfast.runtime.sinks import Sink
from holdfast.runtime.sinks.guard import guarded

_log = logging.getLogger("holdfast.evaluate")


@dataclass(eq=False)
class Evaluation:
    """Evaluates a model on all ranks, whatever happens meanwhile, and lets training go on in lockstep.

    All ranks make it, in the same order, and all call :meth:`run` at the same steps.

    Args:
        model: handed to ``metrics`` (of DistributedDataParallel, the module inside); a module is in evaluation mode
            meanwhile, and as it was afterwards.
        loaders: what gives this rank's batches, or such by the name of their dataset: a DataLoader, any iterable that
            may be iterated over again, or a function of the batch size that gives one (with ``batch_size``).
        metrics: function of model and batch; gives for each metric a pair (sum, count), or a sum over the samples of
            the batch. Numbers, or tensors of one element.
        budget: time for one evaluation with all its tries, as ``"10m"`` or in seconds; looked at between batches.
        retries: tries after the first, each with batches half as large.
        min_coverage: least share of a dataset's samples over which a mean is reported where more could not be had.
        sinks: where results go, from rank 0, under names such as ``eval/<dataset>/<metric>`` and ``eval/failed``.
        grace: so much longer than its budget each rank waits for the others.
        batch_size: the first argument of loaders that are functions.
        samples: function that tells the number of samples of a batch; the default finds a tensor in it.
        collective_forward: the model communicates in its forward (FSDP, DeepSpeed ZeRO-3): ranks do the same number.
        only_rank: this rank alone evaluates; the others wait for its result, and no longer than it may take.

    Raises:
        BadValue: an option cannot be understood.
    """

    model: Any
    loaders: Loader | Mapping[str, Loader]
    metrics: Metrics
    _: KW_ONLY
    budget: str | float
    retries: int = 3
    min_coverage: float = 0.95
    sinks: Iterable[Sink] = ()
    grace: str | float = 15.0
    batch_size: int | None = None
    samples: Callable[[Any], int] = size_of
    collective_forward: bool = False
    only_rank: int | None = None
    _halvings: int = field(default=0, init=False)
    _runs: Counter[int] = field(default_factory=Counter, init=False)
    _delay: int | None = field(default=None, init=False)
    _left_out: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._budget_s, self._grace_s = seconds(self.budget), seconds(self.grace)
        self._check()
        named = self.loaders if isinstance(self.loaders, Mapping) else {"": self.loaders}
        self._sources = [Source(name, loader, self.batch_size, self.samples) for name, loader in named.items()]
        self._guarded = guarded(self.sinks)
        self._meeting = Meeting(self._budget_s, self._grace_s, self.only_rank)
        self._in_step = InStep(inner(self.model), self._meeting) if self.collective_forward else None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group of this evaluation, on the host; None where there is none now."""
        return self._meeting.group

    def run(self, step: int) -> EvalResult:
        """Evaluate at training step ``step``; every rank gets the same result, and none an exception.

        The exception: with ``collective_forward``, an error inside of a forward on some ranks only is raised, as the
        other ranks are left inside the forward's own collectives.
        """
        if self._is_left_out():
            result = EvalResult(step, attempts=0, skipped=True)
            self._tell(result)
            return result
        with phase("evaluation", self._budget_s + 4 * self._grace_s), undisturbed(self.model):
            result = self._evaluate(step, inner(self.model))
        self._tell(result)
        return result

    def _is_left_out(self) -> bool:
        """Whether this one is, where earlier runs teach that evaluations time out: all ranks hear rank 0's history."""
        if self._delay is None:
            self._delay = self._left_out = self._meeting.advised_delay()
        self._left_out = 0 if self._left_out >= self._delay else self._left_out + 1
        return self._left_out > 0

    def _evaluate(self, step: int, model: Any) -> EvalResult:
        """The result, of a model that may be a snapshot. Nothing of the process's state is touched."""
        began = time.monotonic()
        self._runs[step] += 1
        key = f"{step}/{self._runs[step]}"
        try:
            decision = self._decide(key, model)
        except (dist.DistError, ConnectionError) as error:  # of the store: then nothing can be agreed on any more
            told = str(error).strip().partition("\n")[0][:200]
            return EvalResult(step, troubles={self._meeting.rank: f"the job's store does not answer: {told}"})
        return result_of(step, decision, self.min_coverage, time.monotonic() - began)

    def _decide(self, key: str, model: Any) -> Decision:
        if self._meeting.listens:
            return self._meeting.listen(key, time.monotonic() + self._budget_s)
        self._meeting.open(key)
        decision = self._tries(key, model, time.monotonic() + self._budget_s)
        return decision if self.only_rank is None else self._meeting.announce(key, decision)

    def _tries(self, key: str, model: Any, deadline: float) -> Decision:
        """Try until all is well, or the tries or the time are over, and what is decided then."""
        outcome, troubles = Outcome(), dict[int, str]()
        for attempt in count(1):
            job = Job(model, self.metrics, self.samples, self._halvings, deadline)
            name = f"{key}/{attempt}"
            outcome = self._in_step.work(self._sources, job, outcome, name) if self._in_step else (
                work(self._sources, job, outcome)
            )  # fmt: skip
            decision = self._meeting.decide(name, outcome, deadline, may_retry=attempt <= self.retries)
            troubles |= decision.troubles
            if not decision.again:
                break
            _log.info("evaluation %s: try %d failed (%s); again with batches halved", key, attempt, decision.troubles)
            self._halvings += 1
            if self._in_step:  # what one rank has not completed, all do again
                outcome = as_complete_as(decision, outcome)
        if attempt == 1:
            self._halvings = max(self._halvings - 1, 0)  # back to the full size, step by step
        return replace(decision, troubles=troubles, attempts=attempt)

    def _tell(self, result: EvalResult) -> None:
        """Write the result to log and sinks, on one rank; a sink that fails harms nobody."""
        if self._meeting.rank != 0:
            return
        if result.failed or result.degraded or result.troubles:
            _log.warning("%s", result)
        if result.not_finite:
            _log.warning("evaluation at step %d: not finite: %s", result.step, ", ".join(result.not_finite))
        self._guarded.write(result.step, result.for_sinks())

    def _check(self) -> None:
        why = ""
        if self._budget_s <= 0 or self._grace_s <= 0:
            why = f"its budget is {self._budget_s:g} s and its grace {self._grace_s:g} s; give positive times"
        elif self.retries < 0:
            why = f"{self.retries} retries make no sense"
        elif not 0 <= self.min_coverage <= 1:
            why = f"min_coverage is {self.min_coverage}, and a share is between 0 and 1"
        elif self.only_rank is not None and self.collective_forward:
            why = "only_rank and collective_forward exclude each other: one rank cannot do the forward of all"
        elif isinstance(self.loaders, Mapping) and not self.loaders:
            why = "it was given no loader"
        if why:
            raise BadValue("Evaluation", why=why)


def inner(model: Any) -> Any:
    """Without DistributedDataParallel: its forward broadcasts buffers in training's group, where uneven ranks hang."""
    return model.module if isinstance(model, DistributedDataParallel | DataParallel) else model
