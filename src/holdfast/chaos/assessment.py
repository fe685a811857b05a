"""Compares a job that had a fault with the undisturbed run; pure, from the ranks' traces.

A passing job has bit-identical losses in every step of every attempt; it ends at the same step with
the same weights; the effective (last) execution of each step covers each sample of an epoch once;
and it leaves no processes or shared memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.chaos.scenario import Scenario
from holdfast.core.adjustments import NO_ADJUSTMENTS
from holdfast.core.ledger import LedgerEvent, LedgerRecord
from holdfast.report.run_timeline import describe_records


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a rank's trace; ``loss`` in hexadecimal, ``pid`` on the first record."""

    what: str
    step: int
    generation: int
    submission: int = 0
    loss: str = ""
    samples: tuple[int, ...] = ()
    weights: str = ""
    pid: int = 0

    @property
    def start(self) -> tuple[int, int]:
        """Return which start of the ranks the record belongs to, in order."""
        return self.submission, self.generation


class ScenarioRun(msgspec.Struct, frozen=True, kw_only=True):
    """The observed run: a status, report and ledger for each submission of the job."""

    statuses: tuple[int | None, ...]
    reports: tuple[Mapping[str, Any], ...]
    ledgers: tuple[Sequence[LedgerRecord], ...] = ()
    traces: Mapping[int, Sequence[TraceRecord]]
    processes: tuple[str, ...] = ()
    shared_memory: tuple[str, ...] = ()
    applied_faults: tuple[str, ...] = ()
    output: str = ""
    took_s: float = 0.0

    @property
    def roots(self) -> list[Mapping[str, Any] | None]:
        """Return the root of each incident's verdict, oldest first; None: no root was found."""
        incidents = [
            incident for report in self.reports for incident in report.get("incidents", ())
        ]
        return [incident["verdict"]["root"] for incident in incidents]


def find_violations(
    scenario: Scenario, observed: ScenarioRun, undisturbed: ScenarioRun
) -> list[str]:
    """Return one sentence per violated expectation; empty if the job passed."""
    return [
        *_check_end(observed),
        *_check_losses(
            observed, undisturbed, every_attempt=not (scenario.adjusted or scenario.shrink_after)
        ),
        *_check_samples(observed, undisturbed),
        *_check_resumes(scenario, observed),
        *_check_verdicts(scenario, observed),
        *_check_history(scenario, observed),
        *_check_cleanup(observed),
    ]


def effective_records(observed: ScenarioRun) -> dict[int, dict[tuple[str, int], TraceRecord]]:
    """Return each rank's records that no later start from an earlier step has undone."""
    points: dict[tuple[int, int], int] = {}
    for trace in observed.traces.values():
        for record in trace:
            if record.what == "resumed":
                points[record.start] = min(record.step, points.get(record.start, record.step))
    return {
        rank: {
            (record.what, record.step): record
            for record in trace
            if not any(
                start > record.start and point < record.step for start, point in points.items()
            )
        }
        for rank, trace in observed.traces.items()
    }


def count_repeated_steps(observed: ScenarioRun) -> int:
    """Return how many steps ran more than once, on the rank with the most."""
    done = (
        [record.step for record in trace if record.what == "step"]
        for trace in observed.traces.values()
    )
    return max((len(steps) - len(set(steps)) for steps in done), default=0)


def _check_end(observed: ScenarioRun) -> Iterator[str]:
    if observed.statuses[-1] is None:
        yield "it did not end before the time limit"
    elif observed.statuses[-1] != 0:
        yield f"it ended with status {observed.statuses[-1]}"


def _check_losses(
    observed: ScenarioRun, undisturbed: ScenarioRun, *, every_attempt: bool
) -> Iterator[str]:
    """Compare losses and weights.

    If the job computes the same throughout, records that were undone later are compared, too.
    """
    actual, reference = effective_records(observed), effective_records(undisturbed)
    for rank, trace in undisturbed.traces.items():
        expected = {(record.what, record.step): record.loss for record in trace}
        done = [record for record in actual.get(rank, {}).values() if record.what == "done"]
        last = next((r for r in reversed(reference[rank].values()) if r.what == "done"), None)
        if last is None:
            yield f"rank {rank} did not finish in the undisturbed run"
            continue
        removed = last.step < max(step for records in reference.values() for _, step in records)
        if removed:  # the rank leaves the job in the undisturbed run, too
            pass
        elif not done:
            yield f"rank {rank} did not finish"
        elif (done[-1].step, done[-1].weights) != (last.step, last.weights):
            yield (
                f"rank {rank} finished at step {done[-1].step}; its weights differ from those "
                f"of the undisturbed run at step {last.step}"
            )
        if missing := _recorded_steps(reference[rank]) - _recorded_steps(actual.get(rank, {})):
            yield f"rank {rank} never ran step {min(missing)}"
        compared = observed.traces.get(rank, ()) if every_attempt else actual.get(rank, {}).values()
        different = [
            record
            for record in compared
            if record.loss and record.loss != expected.get((record.what, record.step))
        ]
        if different:
            first = different[0]
            yield (
                f"rank {rank} has a different loss in {len(different)} steps, first at step "
                f"{first.step} of generation {first.generation}: {first.loss}"
            )


def _recorded_steps(records: Mapping[tuple[str, int], TraceRecord]) -> set[int]:
    return {step for what, step in records if what == "step"}


def _check_samples(observed: ScenarioRun, undisturbed: ScenarioRun) -> Iterator[str]:
    actual, reference = effective_records(observed), effective_records(undisturbed)
    for rank in undisturbed.traces:
        mine, expected = actual.get(rank, {}), reference[rank]
        different = [
            step
            for what, step in mine
            if (what, step) in expected and mine[what, step].samples != expected[what, step].samples
        ]
        if different:
            yield (
                f"rank {rank} received different samples in {len(different)} steps, first in step "
                f"{min(different)}"
            )
    consumed, expected_samples = (
        Counter(_consumed_samples(records)) for records in (actual, reference)
    )
    if lost := expected_samples - consumed:
        yield f"{lost.total()} samples were skipped, e.g. {min(lost)}"
    if doubled := consumed - expected_samples:
        yield f"{doubled.total()} samples were used twice, e.g. {min(doubled)}"


def _consumed_samples(
    effective: Mapping[int, Mapping[tuple[str, int], TraceRecord]],
) -> Iterator[int]:
    for records in effective.values():
        for record in records.values():
            yield from record.samples


def _check_resumes(scenario: Scenario, observed: ScenarioRun) -> Iterator[str]:
    """Check that each attempt resumes from the newest committed checkpoint not damaged since."""
    for rank, trace in observed.traces.items():
        saved: set[int] = set()
        for record in trace:
            if record.what == "saved":
                saved.add(record.step)
            elif record.what == "resumed":
                usable = (
                    saved
                    if scenario.adjusted != "skip"
                    else {step for step in saved if step <= record.step}
                )
                expected_step = sorted({0, *usable}, reverse=True)[
                    min(scenario.damaged_checkpoints, len(usable))
                ]
                if record.step < expected_step:
                    yield (
                        f"rank {rank} resumed from step {record.step}; "
                        f"step {expected_step} was committed"
                    )


def _check_verdicts(scenario: Scenario, observed: ScenarioRun) -> Iterator[str]:
    names = [root["cause"] if root else "none" for root in observed.roots]
    if not scenario.causes:
        if names:
            yield f"no failure was expected, but a verdict names {', '.join(names)}"
        return
    if not names:
        yield f"no verdict; expected {_expected_causes(scenario)}"
    for name in names:
        if name not in scenario.causes:
            yield f"a verdict names {name}; expected {_expected_causes(scenario)}"
    first = observed.roots[0] if names else None
    if (
        first
        and scenario.faulty_rank is not None
        and first["subject"]["rank"] != scenario.faulty_rank
    ):
        rank = first["subject"]["rank"]
        yield f"the verdict names rank {rank}; expected rank {scenario.faulty_rank}"


def _check_history(scenario: Scenario, observed: ScenarioRun) -> Iterator[str]:
    """Check that each ledger failure has cause, evidence and decision, as `history` prints."""
    failed = [
        entry
        for ledger in observed.ledgers
        for entry in ledger
        if entry.event is LedgerEvent.FAILED
    ]
    if scenario.causes and not failed and any(observed.ledgers):
        yield "the history records no failure"
    for record, event in zip(failed, describe_records(failed), strict=True):
        details = dict(event.details)
        if scenario.causes and not any(
            cause in details.get("cause", "") for cause in scenario.causes
        ):
            cause = details.get("cause", "no cause")
            yield f"the history names {cause}; expected {_expected_causes(scenario)}"
        if scenario.causes and not details.get("evidence"):
            yield "the history records a decision without evidence"
        if record.decision is None or not details.get("decision"):
            yield "the history records a failure without a decision"
        elif record.decision.action not in scenario.expected_actions:
            actions = " or ".join(sorted(scenario.expected_actions))
            yield f"the history records {record.decision.action}; expected {actions}"
    if scenario.adjusted:
        last = next(
            (entry.decision.adjustments for entry in reversed(failed) if entry.decision),
            NO_ADJUSTMENTS,
        )
        if getattr(last, scenario.adjusted) == getattr(NO_ADJUSTMENTS, scenario.adjusted):
            yield f"the history records no decision that changes {scenario.adjusted}"


def _expected_causes(scenario: Scenario) -> str:
    return " or ".join(sorted(scenario.causes))


def _check_cleanup(observed: ScenarioRun) -> Iterator[str]:
    if observed.processes:
        yield (
            f"{len(observed.processes)} processes were left running: "
            f"{'; '.join(observed.processes)[:300]}"
        )
    if observed.shared_memory:
        yield f"left in shared memory: {', '.join(observed.shared_memory)[:300]}"
