"""What an evaluation hands back, and under which names it is written to sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan, nan

from holdfast.runtime.evaluate.decision import Decision, Tally


@dataclass(frozen=True)
class EvalResult:
    """An evaluation at training step ``step``, the same on every rank.

    ``metrics`` holds the means over all ranks, by ``dataset/metric``; a metric that could not be had is absent, never
    0. One that is no finite number is in it as it is. ``coverage`` is the share of samples that was seen (NaN: nobody
    knows how many there are), ``coverages`` that of each dataset. ``attempts``: tries made, 1 where all went well.
    ``degraded``: some metrics are over a part of their samples. ``failed``: some dataset has no result. ``troubles``:
    what went wrong, by rank, one line each. ``seconds``: how long it took on this rank. ``skipped``: it was left out,
    as earlier ones timed out too often; such a result counts as failed, as it has no metrics.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    coverage: float = 0.0
    coverages: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 1
    degraded: bool = False
    failed: bool = True
    troubles: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: bool = False

    @property
    def not_finite(self) -> tuple[str, ...]:
        """The metrics that are NaN or infinite."""
        return tuple(name for name, value in self.metrics.items() if not isfinite(value))

    def for_sinks(self) -> dict[str, float]:
        """All of it as numbers, under the names that sinks get: ``eval/<dataset>/<metric>``, ``eval/failed``, …"""
        if self.skipped:
            return {"eval/skipped": 1.0}
        numbers = {f"eval/{name}": value for name, value in self.metrics.items()}
        numbers |= {"eval/failed": float(self.failed), "eval/degraded": float(self.degraded)}
        numbers |= {"eval/attempts": float(self.attempts), "eval/seconds": self.seconds}
        return numbers if isnan(self.coverage) else numbers | {"eval/coverage": self.coverage}

    def __str__(self) -> str:
        """One line for the log."""
        if self.skipped:
            return f"evaluation at step {self.step} is left out"
        how = "failed" if self.failed else "is degraded" if self.degraded else "went well"
        told = "; ".join(f"rank {rank}: {text}" for rank, text in self.troubles.items())
        covered = "an unknown share" if isnan(self.coverage) else f"{100 * self.coverage:.1f} %"
        tries = "1 try" if self.attempts == 1 else f"{self.attempts} tries"
        return f"evaluation at step {self.step} {how} after {tries}, {covered} of its samples seen" + (
            f" ({told})" if told else ""
        )


def result_of(step: int, decision: Decision, min_coverage: float, seconds: float) -> EvalResult:
    """The decision as users see it. A dataset counts where at least ``min_coverage`` of its samples were seen."""
    tallies = decision.tallies
    coverages = {name: tally.coverage for name, tally in tallies.items()}
    enough = {name: tally for name, tally in tallies.items() if tally.seen and coverages[name] >= min_coverage}
    troubles = dict(decision.troubles) | dict.fromkeys(decision.absent, "did not come")
    nothing = [name for name, tally in tallies.items() if tally.complete and not tally.seen]
    if nothing and not troubles:
        troubles = {0: f"{_said(nothing)} gave no sample on any rank"}
    return EvalResult(
        step,
        metrics={
            key_of(name, metric): _mean(*pair) for name, tally in enough.items() for metric, pair in tally.sums.items()
        },
        coverage=_whole(list(tallies.values())),
        coverages=coverages,
        attempts=decision.attempts,
        degraded=any(not tally.complete for tally in enough.values()),
        failed=not tallies or len(enough) < len(tallies),
        troubles=troubles,
        seconds=seconds,
    )


def key_of(dataset: str, metric: str) -> str:
    """``dataset/metric``; a single loader has no name."""
    return f"{dataset}/{metric}" if dataset else metric


def _said(names: list[str]) -> str:
    return ", ".join(name or "the loader" for name in names)


def _mean(total: float, count: float) -> float:
    return total / count if count else nan


def _whole(tallies: list[Tally]) -> float:
    if tallies and all(tally.complete for tally in tallies):
        return 1.0
    shares = [(tally.seen, tally.seen if tally.complete else tally.expected) for tally in tallies]
    known = [expected for _, expected in shares if expected is not None]
    if len(known) < len(shares):
        return nan
    return min(sum(seen for seen, _ in shares) / sum(known), 1.0) if sum(known) else 0.0
