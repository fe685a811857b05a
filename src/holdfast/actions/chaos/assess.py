"""What a job that was hurt did, next to the same job left in peace: pure, from the traces of its ranks.

A job that survived has the losses of the other, to the last bit, in every step of every attempt; it ends at the same
step with the same weights; of all that it did, what counts (the last doing of each step) has each sample of an epoch
once; and it leaves nothing behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.actions.chaos.scenario import Scenario
from holdfast.actions.ledger import Event, Record
from holdfast.actions.story import story
from holdfast.adjustments import NONE


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a rank's trace; ``loss`` in hexadecimal, ``pid`` where it began."""

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
        """Which start of the ranks it was, in order."""
        return self.submission, self.generation


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a scenario: a status, report and ledger for each time that the job was submitted."""

    statuses: tuple[int | None, ...]
    reports: tuple[Mapping[str, Any], ...]
    ledgers: tuple[Sequence[Record], ...] = ()
    traces: Mapping[int, Sequence[Fact]]
    processes: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    struck: tuple[str, ...] = ()
    output: str = ""
    took_s: float = 0.0

    @property
    def roots(self) -> list[Mapping[str, Any] | None]:
        """The root of each incident's verdict, oldest first; None where none could be named."""
        incidents = [each for report in self.reports for each in report.get("incidents", ())]
        return [each["verdict"]["root"] for each in incidents]


def wrong(scenario: Scenario, played: Played, peace: Played) -> list[str]:
    """One sentence for everything that is not as it has to be; nothing where the job survived."""
    return [
        *_ends(played),
        *_losses(played, peace, all_of_them=not scenario.adjusted and not scenario.apart_at),
        *_samples(played, peace),
        *_resumes(scenario, played),
        *_verdicts(scenario, played),
        *_history(scenario, played),
        *_left(played),
    ]


def counting(played: Played) -> dict[int, dict[tuple[str, int], Fact]]:
    """For each rank what counts of what it did: a later start that went on from before that has undone it."""
    points: dict[tuple[int, int], int] = {}
    for trace in played.traces.values():
        for fact in trace:
            if fact.what == "resumed":
                points[fact.start] = min(fact.step, points.get(fact.start, fact.step))
    return {
        rank: {
            (fact.what, fact.step): fact
            for fact in trace
            if not any(start > fact.start and point < fact.step for start, point in points.items())
        }
        for rank, trace in played.traces.items()
    }


def redone(played: Played) -> int:
    """How many steps were done more than once, on the rank where that were most."""
    done = ([fact.step for fact in trace if fact.what == "step"] for trace in played.traces.values())
    return max((len(steps) - len(set(steps)) for steps in done), default=0)


def _ends(played: Played) -> Iterator[str]:
    if played.statuses[-1] is None:
        yield "it did not end in time"
    elif played.statuses[-1] != 0:
        yield f"it ended with status {played.statuses[-1]}"


def _losses(played: Played, peace: Played, *, all_of_them: bool) -> Iterator[str]:
    """Of a job that computes the same all along everything is compared, also what was undone later."""
    mine, others = counting(played), counting(peace)
    for rank, undisturbed in peace.traces.items():
        expected = {(fact.what, fact.step): fact.loss for fact in undisturbed}
        done = [fact for fact in mine.get(rank, {}).values() if fact.what == "done"]
        last = next((fact for fact in reversed(others[rank].values()) if fact.what == "done"), None)
        if last is None:
            yield f"rank {rank} was not done in peace"
            continue
        gone = last.step < max(step for found in others.values() for _, step in found)  # in peace too
        if gone:
            pass
        elif not done:
            yield f"rank {rank} was not done"
        elif (done[-1].step, done[-1].weights) != (last.step, last.weights):
            yield f"rank {rank} was done at step {done[-1].step} with other weights than at step {last.step} in peace"
        if missing := _steps(others[rank]) - _steps(mine.get(rank, {})):
            yield f"rank {rank} never did step {min(missing)}"
        compared = played.traces.get(rank, ()) if all_of_them else mine.get(rank, {}).values()
        other = [fact for fact in compared if fact.loss and fact.loss != expected.get((fact.what, fact.step))]
        if other:
            yield (
                f"rank {rank} has another loss in {len(other)} steps, first at step {other[0].step} of generation "
                f"{other[0].generation}: {other[0].loss}"
            )


def _steps(facts: Mapping[tuple[str, int], Fact]) -> set[int]:
    return {step for what, step in facts if what == "step"}


def _samples(played: Played, peace: Played) -> Iterator[str]:
    counted, calm = counting(played), counting(peace)
    for rank in peace.traces:
        mine, others = counted.get(rank, {}), calm[rank]
        odd = [step for what, step in mine if (what, step) in others
               and mine[what, step].samples != others[what, step].samples]  # fmt: skip
        if odd:
            yield f"rank {rank} saw other samples in {len(odd)} steps, first in step {min(odd)}"
    seen, due = (Counter(_seen(each)) for each in (counted, calm))
    if lost := due - seen:
        yield f"{lost.total()} samples were lost, such as {min(lost)}"
    if doubled := seen - due:
        yield f"{doubled.total()} samples came twice, such as {min(doubled)}"


def _seen(counted: Mapping[int, Mapping[tuple[str, int], Fact]]) -> Iterator[int]:
    for found in counted.values():
        for fact in found.values():
            yield from fact.samples


def _resumes(scenario: Scenario, played: Played) -> Iterator[str]:
    """An attempt goes on from the newest checkpoint that was declared before it, but for what was damaged since."""
    for rank, trace in played.traces.items():
        saved: set[int] = set()
        for fact in trace:
            if fact.what == "saved":
                saved.add(fact.step)
            elif fact.what == "resumed":
                known = saved if scenario.adjusted != "skip" else {step for step in saved if step <= fact.step}
                due = sorted({0, *known}, reverse=True)[min(scenario.damaged, len(known))]
                if fact.step < due:
                    yield f"rank {rank} went on from step {fact.step}, though step {due} was declared saved"


def _verdicts(scenario: Scenario, played: Played) -> Iterator[str]:
    names = [root["cause"] if root else "none" for root in played.roots]
    if not scenario.causes:
        if names:
            yield f"nothing failed, and a verdict says {', '.join(names)}"
        return
    if not names:
        yield f"no verdict was given; {_listed(scenario)} was wanted"
    for name in names:
        if name not in scenario.causes:
            yield f"a verdict says {name}, not {_listed(scenario)}"
    first = played.roots[0] if names else None
    if first and scenario.culprit is not None and first["subject"]["rank"] != scenario.culprit:
        yield f"the verdict names rank {first['subject']['rank']}, not {scenario.culprit}"


def _history(scenario: Scenario, played: Played) -> Iterator[str]:
    """Every failure stands in a ledger, with its cause, its evidence and what was decided, as `history` prints it."""
    failed = [each for ledger in played.ledgers for each in ledger if each.event is Event.FAILED]
    if scenario.causes and not failed and any(played.ledgers):
        yield "the history tells of no failure"
    for record, event in zip(failed, story(failed), strict=True):
        words = dict(event["lines"])
        if scenario.causes and not any(cause in words.get("cause", "") for cause in scenario.causes):
            yield f"the history names {words.get('cause', 'no cause')}, not {_listed(scenario)}"
        if scenario.causes and not words.get("evidence"):
            yield "the history has no evidence for a decision"
        if record.decision is None or not words.get("decision"):
            yield "the history tells of a failure and of no decision"
        elif record.decision.course not in scenario.courses:
            yield f"the history says {record.decision.course}, not {' or '.join(sorted(scenario.courses))}"
    if scenario.adjusted:
        last = next((each.decision.adjustments for each in reversed(failed) if each.decision), NONE)
        if getattr(last, scenario.adjusted) == getattr(NONE, scenario.adjusted):
            yield f"the history says of no decision that changes {scenario.adjusted}"


def _listed(scenario: Scenario) -> str:
    return " or ".join(sorted(scenario.causes))


def _left(played: Played) -> Iterator[str]:
    if played.processes:
        yield f"{len(played.processes)} processes were left: {'; '.join(played.processes)[:300]}"
    if played.shared:
        yield f"{', '.join(played.shared)[:300]} was left in shared memory"
