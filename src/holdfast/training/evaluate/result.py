"""The result of an evaluation, and the names under which sinks get it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan, nan

from holdfast.training.evaluate.decision import DatasetTally, EvaluationDecision

#: Error of a rank whose outcome did not arrive before the deadline.
NO_REPORT = "no report before the deadline"


@dataclass(frozen=True)
class EvalResult:
    """An evaluation at training step ``step``, equal on every rank.

    ``metrics`` holds the means over all ranks, by ``dataset/metric``; an unavailable metric is
    absent, never 0, and NaN and infinity are kept. ``coverage`` is the share of samples seen (NaN
    if their number is unknown), ``coverages`` that of each dataset. ``attempts``: 1 if the first
    succeeded. ``degraded``: some metrics cover only a part of their samples. ``failed``: a dataset
    has no result. ``errors``: what failed, by rank, one line each. ``seconds``: duration on this
    rank. ``skipped``: not run because earlier evaluations timed out too often; counts as failed,
    because it has no metrics.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    coverage: float = 0.0
    coverages: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 1
    degraded: bool = False
    failed: bool = True
    errors: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: bool = False

    @property
    def troubles(self) -> Mapping[int, str]:
        """Return ``errors``, under its former name."""
        warnings.warn("EvalResult.troubles is now errors", DeprecationWarning, stacklevel=2)
        return self.errors

    @property
    def not_finite(self) -> tuple[str, ...]:
        """Return the metrics that are NaN or infinite."""
        return tuple(name for name, value in self.metrics.items() if not isfinite(value))

    def for_sinks(self) -> dict[str, float]:
        """Return all numbers by name: ``eval/<dataset>/<metric>``, ``eval/failed`` and so on."""
        if self.skipped:
            return {"eval/skipped": 1.0}
        numbers = {f"eval/{name}": value for name, value in self.metrics.items()}
        numbers |= {"eval/failed": float(self.failed), "eval/degraded": float(self.degraded)}
        numbers |= {"eval/attempts": float(self.attempts), "eval/seconds": self.seconds}
        return numbers if isnan(self.coverage) else numbers | {"eval/coverage": self.coverage}

    def __str__(self) -> str:
        """Return one line for the log."""
        if self.skipped:
            return f"evaluation at step {self.step} skipped"
        outcome = "failed" if self.failed else "is degraded" if self.degraded else "succeeded"
        errors = "; ".join(f"rank {rank}: {text}" for rank, text in self.errors.items())
        share = "an unknown share" if isnan(self.coverage) else f"{100 * self.coverage:.1f}%"
        attempts = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        text = f"evaluation at step {self.step} {outcome} after {attempts}, {share} of samples seen"
        return f"{text} ({errors})" if errors else text


def create_result(
    step: int, decision: EvaluationDecision, min_coverage: float, seconds: float
) -> EvalResult:
    """Return the result of a decision; datasets below ``min_coverage`` have no metrics."""
    tallies = decision.tallies
    coverages = {name: tally.coverage for name, tally in tallies.items()}
    sufficient = {
        name: tally
        for name, tally in tallies.items()
        if tally.seen and coverages[name] >= min_coverage
    }
    errors = dict(decision.errors) | dict.fromkeys(decision.missing, NO_REPORT)
    empty = [name for name, tally in tallies.items() if tally.complete and not tally.seen]
    if empty and not errors:
        names = ", ".join(name or "the loader" for name in empty)
        errors = {0: f"no samples on any rank from {names}"}
    return EvalResult(
        step,
        metrics={
            key_of(name, metric): total / count if count else nan
            for name, tally in sufficient.items()
            for metric, (total, count) in tally.sums.items()
        },
        coverage=_total_coverage(list(tallies.values())),
        coverages=coverages,
        attempts=decision.attempts,
        degraded=any(not tally.complete for tally in sufficient.values()),
        failed=not tallies or len(sufficient) < len(tallies),
        errors=errors,
        seconds=seconds,
    )


def key_of(dataset: str, metric: str) -> str:
    """Return ``dataset/metric``; a single loader has no name."""
    return f"{dataset}/{metric}" if dataset else metric


def _total_coverage(tallies: list[DatasetTally]) -> float:
    if tallies and all(tally.complete for tally in tallies):
        return 1.0
    expected = [tally.seen if tally.complete else tally.expected for tally in tallies]
    known = [samples for samples in expected if samples is not None]
    if len(known) < len(tallies):
        return nan
    seen = sum(tally.seen for tally in tallies)
    return min(seen / sum(known), 1.0) if sum(known) else 0.0
