"""Guarded evaluation: run, agree with the other ranks, retry with smaller batches, and continue."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch.distributed as dist
from msgspec.structs import replace
from torch.nn.parallel import DataParallel, DistributedDataParallel

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.recorder import parse_duration, phase
from holdfast.training.collectives.call_text import first_line
from holdfast.training.evaluate.agreement import EvaluationAgreement
from holdfast.training.evaluate.batch_sources import BatchSource, LoaderOrFactory, count_samples
from holdfast.training.evaluate.decision import (
    EvaluationDecision,
    RankOutcome,
    limit_completeness,
)
from holdfast.training.evaluate.local import (
    EvaluationTask,
    MetricFunction,
    evaluate_locally,
    evaluate_sources,
)
from holdfast.training.evaluate.lockstep_forwards import LockstepEvaluator
from holdfast.training.evaluate.preserved_state import preserve_state
from holdfast.training.evaluate.result import EvalResult, create_result
from holdfast.training.sinks import Sink
from holdfast.training.sinks.background_writer import guarded

_log = logging.getLogger("holdfast.evaluate")


@suggest_keywords
@dataclass(eq=False)
class Evaluation:
    """Evaluates a model on all ranks; whatever fails, training continues in lockstep.

    All ranks create it, in the same order, and all call :meth:`run` at the same steps.

    Args:
        model: passed to ``metrics`` (without DistributedDataParallel's wrapper). A module is in
            evaluation mode meanwhile, and in its previous mode afterwards.
        loaders: this rank's batches, or several such by the name of their dataset: a DataLoader,
            any iterable that can be iterated over repeatedly, or a function of the batch size that
            returns one (with ``batch_size``).
        metrics: function of model and batch; returns for each metric a pair (sum, count), or a sum
            over the samples of the batch. Numbers, or tensors of one element.
        budget: time for one evaluation with all its attempts, as ``"10m"`` or in seconds; checked
            between batches.
        retries: attempts after the first, each with batches half as large.
        min_coverage: smallest share of a dataset's samples for which an incomplete mean is
            reported.
        sinks: where rank 0 writes results, under names such as ``eval/<dataset>/<metric>`` and
            ``eval/failed``.
        grace: how much longer than its budget each rank waits for the others.
        batch_size: passed to loaders that are functions.
        samples: function that returns the number of samples of a batch; by default the length of
            its first tensor.
        collective_forward: the model's forward communicates (FSDP, DeepSpeed ZeRO-3), so all ranks
            do equally many.
        only_rank: only this rank evaluates; the others wait for its result, for at most its budget
            and grace.

    Raises:
        InvalidValue: an option is invalid.
    """

    model: Any
    loaders: LoaderOrFactory | Mapping[str, LoaderOrFactory]
    metrics: MetricFunction
    _: KW_ONLY
    budget: str | float
    retries: int = 3
    min_coverage: float = 0.95
    sinks: Iterable[Sink] = ()
    grace: str | float = 15.0
    batch_size: int | None = None
    samples: Callable[[Any], int] = count_samples
    collective_forward: bool = False
    only_rank: int | None = None
    _halvings: int = field(default=0, init=False)
    _runs: Counter[int] = field(default_factory=Counter, init=False)
    _delay: int | None = field(default=None, init=False)
    _skipped_in_row: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._budget_s, self._grace_s = parse_duration(self.budget), parse_duration(self.grace)
        self._check_options()
        named = self.loaders if isinstance(self.loaders, Mapping) else {"": self.loaders}
        self._sources = [
            BatchSource(name, loader, self.batch_size, self.samples)
            for name, loader in named.items()
        ]
        self._guarded_sinks = guarded(self.sinks)
        self._agreement = EvaluationAgreement(self._budget_s, self._grace_s, self.only_rank)
        self._lockstep: LockstepEvaluator | None = None
        if self.collective_forward:
            self._lockstep = LockstepEvaluator(unwrap_ddp(self.model), self._agreement)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Return the process group of this evaluation, on the host; None if there is none now."""
        return self._agreement.group

    def run(self, step: int) -> EvalResult:
        """Evaluate at training step ``step``; every rank gets the same result, none an exception.

        Except with ``collective_forward``: an error inside a forward on only some ranks is raised,
        because the other ranks are blocked in the forward's own collectives.
        """
        if self._should_skip():
            result = EvalResult(step, attempts=0, skipped=True)
        else:
            budget_s = self._budget_s + 4 * self._grace_s
            with phase("evaluation", budget_s), preserve_state(self.model):
                result = self._evaluate(step, unwrap_ddp(self.model))
        self._report(result)
        return result

    def _should_skip(self) -> bool:
        """Return whether to skip this one, as rank 0's history of timed-out evaluations advises."""
        if self._delay is None:
            self._delay = self._skipped_in_row = self._agreement.advised_delay()
        is_due = self._skipped_in_row >= self._delay
        self._skipped_in_row = 0 if is_due else self._skipped_in_row + 1
        return not is_due

    def _evaluate(self, step: int, model: Any) -> EvalResult:
        """Evaluate a model, which may be a snapshot, without changing global state."""
        began = time.monotonic()
        self._runs[step] += 1
        key = f"{step}/{self._runs[step]}"
        try:
            decision = self._decide(key, model)
        except (dist.DistError, ConnectionError) as error:  # of the store: no agreement is possible
            why = f"the job's store does not answer: {first_line(error, 200)}"
            return EvalResult(step, errors={self._agreement.rank: why})
        return create_result(step, decision, self.min_coverage, time.monotonic() - began)

    def _decide(self, key: str, model: Any) -> EvaluationDecision:
        if self._agreement.is_observer:
            return self._agreement.await_decision(key, time.monotonic() + self._budget_s)
        self._agreement.prepare_group(key)
        decision = self._run_attempts(key, model, time.monotonic() + self._budget_s)
        if self.only_rank is None:
            return decision
        return self._agreement.publish_decision(key, decision)

    def _run_attempts(self, key: str, model: Any, deadline: float) -> EvaluationDecision:
        """Retry until all ranks succeed, or attempts or time are exhausted; return the decision."""
        outcome, errors = RankOutcome(), dict[int, str]()
        for attempt in count(1):
            task = EvaluationTask(model, self.metrics, self.samples, self._halvings, deadline)
            name = f"{key}/{attempt}"
            if self._lockstep is not None:
                outcome = self._lockstep.evaluate(self._sources, task, outcome, name)
            else:
                outcome = evaluate_sources(
                    self._sources, outcome, partial(evaluate_locally, task=task)
                )
            may_retry = attempt <= self.retries
            decision = self._agreement.decide(name, outcome, deadline, may_retry=may_retry)
            errors |= decision.errors
            if not decision.retry:
                break
            _log.info(
                "evaluation %s: attempt %d failed (%s); retrying with half the batch size",
                key,
                attempt,
                decision.errors,
            )
            self._halvings += 1
            if self._lockstep is not None:  # all ranks repeat what one has not completed
                outcome = limit_completeness(decision, outcome)
        if attempt == 1:
            self._halvings = max(self._halvings - 1, 0)  # return to the full size step by step
        return replace(decision, errors=errors, attempts=attempt)

    def _report(self, result: EvalResult) -> None:
        """Write the result to log and sinks, on rank 0 only; a failing sink has no effect."""
        if self._agreement.rank != 0:
            return
        if result.failed or result.degraded or result.errors:
            _log.warning("%s", result)
        if result.not_finite:
            metrics = ", ".join(result.not_finite)
            _log.warning("evaluation at step %d: not finite: %s", result.step, metrics)
        self._guarded_sinks.write(result.step, result.for_sinks())

    def _check_options(self) -> None:
        why = ""
        if self._budget_s <= 0 or self._grace_s <= 0:
            why = f"budget ({self._budget_s:g} s) and grace ({self._grace_s:g} s) must be positive"
        elif self.retries < 0:
            why = f"retries={self.retries} must be at least 0"
        elif not 0 <= self.min_coverage <= 1:
            why = f"min_coverage={self.min_coverage} must be between 0 and 1"
        elif self.only_rank is not None and self.collective_forward:
            why = "only_rank excludes collective_forward, which needs the forward of all ranks"
        elif isinstance(self.loaders, Mapping) and not self.loaders:
            why = "loaders is empty"
        if why:
            raise InvalidValue("Evaluation", why=why)


def unwrap_ddp(model: Any) -> Any:
    """Return the module in DistributedDataParallel, or the model.

    DDP's forward broadcasts buffers in training's group, where uneven ranks deadlock.
    """
    return model.module if isinstance(model, DistributedDataParallel | DataParallel) else model
