"""Can these ranks start a job? Their hosts meet and try every way between them; then torch makes a small job.

The stages are those of a job's beginning: resolve, route, TCP, the ways between all hosts (sockets alone, which tell
why they fail and take no torch), then store, group, barrier and checked sums, with torch. The first that fails is the
last, on every rank, and all of them are told why.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.actions import small_job
from holdfast.actions.small_job import Crew, Passage
from holdfast.facts.reach import Approach, Attempt, Fate, Gathered, HostReport
from holdfast.facts.reach.meeting import Muster, meet
from holdfast.facts.reach.meeting import Outcome as Met
from holdfast.findings import Finding, Level, Unknown, Verdict
from holdfast.report.checks import Line, State
from holdfast.report.text import plural
from holdfast.rules import preflight, reach
from holdfast.runtime import probe

QUESTION = "can these ranks start a job?"


class Connected(msgspec.Struct, frozen=True):
    """All stages, and the verdict over them."""

    host: str
    stages: tuple[Passage, ...]
    findings: tuple[Finding, ...]
    verdict: Verdict
    elapsed_s: float

    @property
    def exit_status(self) -> int:
        """0 all is well, 1 a stage failed."""
        return int(any(claim.level is Level.ERROR for claim in self.findings))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The stages for the terminal."""
        return tuple(Line(each.name, self.host, each.state, each.line) for each in self.stages)


class _Told(msgspec.Struct, frozen=True):
    """What whoever led tells all copies. ``imported``: torch is imported on every host. ``crew``: by node rank."""

    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    ways: str
    imported: bool = False
    crew: Crew = Crew()


def connect(
    muster: Muster, backend: str = "", tell: Callable[[Passage], None] | None = None, *, workers: int = 1
) -> Connected:
    """Go through all stages together with the other copies; ``tell`` hears of each as it ends.

    Each copy brings so many ``workers`` into the small job: one, where a launcher has started a copy a rank.
    """
    begun, stages = time.monotonic(), []

    def passed(stage: Passage) -> None:
        stages.append(stage)
        if tell is not None:
            tell(stage)

    rank, endpoint = muster.node or 0, f"{muster.host}:{muster.port}"
    with probe.Probe(rank) as probing:  # it imports torch while the hosts meet
        met = asyncio.run(meet(muster, partial(_report, probing, workers), partial(_judged, endpoint)))
        told = _told(met, muster)
        for stage in (*_approached(met.approach), *_crossed(met, told, begun)):
            passed(stage)
        findings = told.findings
        if told.crew.hosts and not any(claim.level is Level.ERROR for claim in findings):
            wait_s = small_job.waiting_s(all_imported=told.imported)
            plan = told.crew.plan(rank, address=muster.host, port=muster.port, backend=backend, wait_s=wait_s)
            findings += small_job.make(probing, plan, told.crew, passed)
    return Connected(
        os.uname().nodename, tuple(stages), findings, preflight.verdict(findings, told.unseen, QUESTION),
        round(time.monotonic() - begun, 3),
    )  # fmt: skip


async def _report(probing: probe.Probe, workers: int) -> HostReport:
    """How the import of torch went here; the hosts' own checks are another command's."""
    return HostReport(host=os.uname().nodename, looks=dict(await small_job.imported(probing)), workers=workers)


def _judged(endpoint: str, gathered: Gathered) -> bytes:
    """What all copies are told."""
    size = len(gathered.present)
    links = [link.round_trip_s for link in gathered.links if link.round_trip_s is not None]
    slowest = f", at most {max(links) * 1e3:.2f} ms there and back" if links else ""
    ways = f"{plural(size, 'host')}, each way between them tried with small and large messages{slowest}"
    imported, failures = small_job.imports(gathered.reports.values(), size, endpoint)
    findings = (*reach.judge(gathered), *failures)
    brought = {number: report.workers for number, report in gathered.reports.items()}
    order = sorted(gathered.present, key=lambda each: each.copy.node or 0)
    crew = Crew(tuple((each.copy.host, brought.get(each.number, 1)) for each in order))
    return msgspec.json.encode(_Told(findings, tuple(reach.unseen(gathered)), ways, imported, crew))


def _told(met: Met, muster: Muster) -> _Told:
    """What was judged by whoever led, or what this copy can say alone."""
    told = met.told(_Told)
    if isinstance(told, Unknown):
        return _Told(reach.alone(met.copy, met.approach, told, muster.wait_s), (told.why,), "")
    return told


def _approached(approach: Approach) -> list[Passage]:
    """Resolve, route and TCP; those behind the first that failed are left out."""
    if isinstance(approach.addresses, Unknown):
        text = f"{approach.host}: {approach.addresses.why}"
        return [Passage(name="resolve", state=State.ERROR, text=text, took_s=approach.resolve_s)]
    means = f"{approach.host} is {', '.join(approach.addresses)}" + (", an address of this host" * approach.owned)
    stages = [Passage(name="resolve", state=State.OK, text=means, took_s=approach.resolve_s)]
    if not approach.source:
        return [*stages, Passage(name="route", state=State.ERROR, text=f"there is no way to {approach.addresses[0]}")]
    stages.append(Passage(name="route", state=State.OK, text=f"from {approach.source} on {approach.interface}"))
    if approach.main is None:
        bound = approach.bound or "not tried"
        state = State.OK if bound == "listening" else State.ERROR
        return [*stages, Passage(name="tcp", state=state, text=f"port {approach.port} here: {bound}")]
    return [*stages, _opened(approach.main)]


def _opened(attempt: Attempt) -> Passage:
    state = State.OK if attempt.fate is Fate.OPEN else State.ERROR
    detail = f" ({attempt.detail})" if attempt.detail else ""
    text = f"{attempt.address}:{attempt.port} is {attempt.fate}{detail}"
    return Passage(name="tcp", state=state, text=text, took_s=attempt.elapsed_s)


def _crossed(met: Met, told: _Told, begun: float) -> list[Passage]:
    """The ways between all hosts."""
    errors = [claim.message for claim in told.findings if claim.level is Level.ERROR]
    took_s = round(time.monotonic() - begun, 3)
    if isinstance(met.content, Unknown):
        return [Passage(name="hosts", state=State.ERROR, text=met.content.why, took_s=took_s)]
    return [
        Passage(name="hosts", state=State.ERROR if errors else State.OK, text=(errors or [told.ways])[0], took_s=took_s)
    ]


def to_json(connected: Connected) -> dict[str, Any]:
    """The stages as plain data."""
    data: dict[str, Any] = {"host": connected.host, "stages": msgspec.to_builtins(connected.stages)}
    return data
