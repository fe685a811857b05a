"""Evaluation of models whose forward communicates (FSDP, ZeRO-3): equally many forwards per rank.

A rank whose batches are exhausted, or whose loader failed, repeats an earlier batch without
counting it, until all ranks stop at the same batch: at the agreed number, or at a check where a
rank reports an error.

An error inside a forward on only some ranks cannot be repaired. The forward's collectives run in
training's groups, the other ranks are blocked in them, and any later call of this rank would
mismatch them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch.nn import Module

from holdfast.training.evaluate.agreement import EvaluationAgreement
from holdfast.training.evaluate.batch_sources import BatchSource
from holdfast.training.evaluate.decision import DatasetTally, RankOutcome
from holdfast.training.evaluate.local import (
    OUT_OF_TIME,
    EvaluationTask,
    MetricSums,
    create_tally,
    describe_error,
    evaluate_sources,
)

#: Batches between two checks of the other ranks; each costs a small collective.
CHECK_EVERY = 16


class LockstepEvaluator:
    """Evaluates datasets with equally many forwards on all ranks."""

    def __init__(self, model: Any, agreement: EvaluationAgreement) -> None:
        self._agreement = agreement
        # Whether the current forward has started, and is running. Without module hooks, the whole
        # metric function counts as the forward.
        self._has_hooks = isinstance(model, Module)
        self._is_started = self._is_inside = not self._has_hooks
        if isinstance(model, Module):
            model.register_forward_pre_hook(self._on_enter, prepend=True)
            model.register_forward_hook(self._on_exit)

    def evaluate(
        self, sources: list[BatchSource], task: EvaluationTask, before: RankOutcome, key: str
    ) -> RankOutcome:
        """Evaluate the datasets that are not complete in ``before``, which all ranks share.

        Raises:
            Exception: the user's function raised it inside a forward, and other ranks' did not.
        """
        return evaluate_sources(
            sources, before, lambda source: self._evaluate(source, task, f"{key}/{source.name}")
        )

    def _evaluate(
        self, source: BatchSource, task: EvaluationTask, key: str
    ) -> tuple[DatasetTally, str]:
        share = _DatasetPass(source, task)
        own = [float(share.length), float(bool(share.error)), float(not share.length)]
        agreed = self._agreement.agree_maximum(f"{key}/rounds", own, task.deadline)
        rounds = int(agreed[0]) if agreed else 0
        if agreed is None or (rounds and (agreed[1] or agreed[2])):
            if not share.length:
                share.fail("no batch, but the model's forward needs one on every rank")
            share.fail("another rank could not start")
            rounds = 0
        for number in range(1, rounds + 1):
            if not self._run_forward(share, f"{key}/{number}/inside", task):
                break
            if number % CHECK_EVERY == 0 or number == rounds:
                if number < rounds and time.monotonic() > task.deadline:
                    share.fail(OUT_OF_TIME)
                failed = [float(bool(share.error))]
                if self._agreement.agree_maximum(f"{key}/{number}", failed, task.deadline) != [0.0]:
                    share.fail("stopped because another rank failed")
                    break
        return create_tally(source, share.sums, share.error)

    def _run_forward(self, share: _DatasetPass, key: str, task: EvaluationTask) -> bool:
        """Evaluate one batch; if that fails before the forward, repeat the previous one.

        Returns False if all ranks failed inside the forward.
        """
        for step in (share.evaluate_next, share.repeat_last):
            self._is_started = self._is_inside = not self._has_hooks
            try:
                step()
            except Exception as error:  # noqa: BLE001, RUF100
                share.fail(describe_error(error))
                if not self._is_inside and self._is_started:
                    return True
                is_last = step == share.repeat_last
                if (self._is_inside or is_last) and not self._did_all_fail(key, task):
                    raise
                if self._is_inside:
                    return False
            else:
                return True
        return False

    def _did_all_fail(self, key: str, task: EvaluationTask) -> bool:
        """Return whether every rank failed inside this forward, so that none is blocked in it."""
        now = time.monotonic()
        deadline = min(max(task.deadline, now), now + self._agreement.grace_s)
        return self._agreement.agree_maximum(key, [1.0], deadline) is not None

    def _on_enter(self, *_: object) -> None:
        self._is_started = self._is_inside = True

    def _on_exit(self, *_: object) -> None:
        self._is_inside = False


class _DatasetPass:
    """One dataset on this rank, with its first error. ``length``: the most batches."""

    def __init__(self, source: BatchSource, task: EvaluationTask) -> None:
        self.sums, self.error, self.length = MetricSums(), "", 0
        self._task = task
        self._last: Any = None
        self._next: Any = None
        self._batches: Iterator[Any] = iter(())
        try:
            loader = source.create_loader(task.halvings)
            self.length = source.count_batches(loader, task.halvings)
            self._batches = iter(loader)
            self._last = self._next = next(self._batches, None)
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            self.fail(describe_error(error))

    def fail(self, error: str) -> None:
        """Record an error, unless there was one before."""
        self.error = self.error or error

    def evaluate_next(self) -> None:
        """Evaluate the next batch; after the last one, or an error, repeat one without counting."""
        if self.error or self._next is None:
            self.repeat_last()
            return
        self._last = self._next
        values = self._task.metrics(self._task.model, self._last)
        self.sums.add(values, self._task.samples(self._last))
        self._next = next(self._batches, None)

    def repeat_last(self) -> None:
        """Run a forward only because the other ranks do."""
        self._task.metrics(self._task.model, self._last)
