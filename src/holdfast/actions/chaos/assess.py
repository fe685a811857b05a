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

from holdfast.actions.chaos.scenarios import Scenario


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a rank's trace; ``loss`` in hexadecimal, ``time`` in Unix seconds, ``pid`` where it began."""

    what: str
    step: int
    generation: int
    time: float
    loss: str = ""
    samples: tuple[int, ...] = ()
    weights: str = ""
    pid: int = 0


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a scenario: one status and report for each time that the job was submitted."""

    statuses: tuple[int | None, ...]
    reports: tuple[Mapping[str, Any], ...]
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
        *_losses(played, peace),
        *_samples(played, peace),
        *_resumes(scenario, played),
        *_verdicts(scenario, played),
        *_left(played),
    ]


def counting(trace: Sequence[Fact]) -> dict[int, Fact]:
    """For each step the last doing of it: what a later attempt did again does not count."""
    return {fact.step: fact for fact in trace if fact.what == "step"}


def redone(played: Played) -> int:
    """How many steps were done more than once, on the rank where that were most."""
    return max((_steps(trace) - len(counting(trace)) for trace in played.traces.values()), default=0)


def _steps(trace: Sequence[Fact]) -> int:
    return sum(fact.what == "step" for fact in trace)


def _ends(played: Played) -> Iterator[str]:
    if played.statuses[-1] is None:
        yield "it did not end in time"
    elif played.statuses[-1] != 0:
        yield f"it ended with status {played.statuses[-1]}"


def _losses(played: Played, peace: Played) -> Iterator[str]:
    for rank, undisturbed in peace.traces.items():
        trace = played.traces.get(rank, ())
        expected = {(fact.what, fact.step): fact.loss for fact in undisturbed}
        done = [fact for fact in trace if fact.what == "done"]
        (last,) = (fact for fact in undisturbed if fact.what == "done")
        if not done:
            yield f"rank {rank} was not done"
        elif (done[-1].step, done[-1].weights) != (last.step, last.weights):
            yield f"rank {rank} was done at step {done[-1].step} with other weights than at step {last.step} in peace"
        if missing := counting(undisturbed).keys() - counting(trace).keys():
            yield f"rank {rank} never did step {min(missing)}"
        other = [fact for fact in trace if fact.loss and fact.loss != expected.get((fact.what, fact.step))]
        if other:
            yield (
                f"rank {rank} has another loss in {len(other)} steps, first at step {other[0].step} of generation "
                f"{other[0].generation}: {other[0].loss}"
            )


def _samples(played: Played, peace: Played) -> Iterator[str]:
    for rank in peace.traces:
        mine, others = counting(played.traces.get(rank, ())), counting(peace.traces[rank])
        odd = [step for step, fact in mine.items() if step in others and fact.samples != others[step].samples]
        if odd:
            yield f"rank {rank} saw other samples in {len(odd)} steps, first in step {min(odd)}"
    seen, due = (Counter(_seen(each)) for each in (played, peace))
    if lost := due - seen:
        yield f"{lost.total()} samples were lost, such as {min(lost)}"
    if doubled := seen - due:
        yield f"{doubled.total()} samples came twice, such as {min(doubled)}"


def _seen(played: Played) -> Iterator[int]:
    for trace in played.traces.values():
        for fact in counting(trace).values():
            yield from fact.samples


def _resumes(scenario: Scenario, played: Played) -> Iterator[str]:
    """An attempt goes on from the newest checkpoint that was declared before it, but for what was damaged since."""
    for rank, trace in played.traces.items():
        saved: set[int] = set()
        for fact in trace:
            if fact.what == "saved":
                saved.add(fact.step)
            elif fact.what == "resumed":
                due = sorted({0, *saved}, reverse=True)[min(scenario.damaged, len(saved))]
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


def _listed(scenario: Scenario) -> str:
    return " or ".join(sorted(scenario.causes))


def _left(played: Played) -> Iterator[str]:
    if played.processes:
        yield f"{len(played.processes)} processes were left: {'; '.join(played.processes)[:300]}"
    if played.shared:
        yield f"{', '.join(played.shared)[:300]} was left in shared memory"
