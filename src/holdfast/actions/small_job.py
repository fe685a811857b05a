"""The small job that torch makes of several hosts after their sockets are known to be well: stages and findings.

Each host brings one process or several; the steps are of 1, 2, 4, … processes, host by host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.facts.reach import HostReport
from holdfast.findings import Finding
from holdfast.report.checks import State
from holdfast.rules.probe import judge
from holdfast.runtime import probe

#: For how long the meeting waits for torch to be imported, which may be read from a slow disk; and how long ranks wait
#: for each other afterwards, where all have it, and where some have not.
_IMPORT_S, _WAIT_S, _SLOW_IMPORT_S = 8.0, 5.0, 60.0
_TORCH = "torch"


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage as this rank saw it: how it ended, what was seen, and how long it took."""

    name: str
    state: State
    text: str
    took_s: float | None = None
    timings: tuple[probe.Timing, ...] = ()

    @property
    def line(self) -> str:
        """What was seen and how long it took, for the terminal."""
        if self.took_s is None:
            return self.text
        took = f"{self.took_s * 1e3:,.0f} ms"
        return f"{self.text} ({took})" if self.text else took


async def imported(small_job: probe.Probe) -> Mapping[str, msgspec.Raw]:
    """How the import of torch went on this host, for its report; empty where it is not over in time."""
    found = await asyncio.to_thread(small_job.imported, _IMPORT_S)
    return {_TORCH: msgspec.Raw(msgspec.json.encode(found))} if found is not None else {}


def imports(reports: Iterable[HostReport], size: int, endpoint: str) -> tuple[bool, tuple[Finding, ...]]:
    """Whether torch is imported on all ``size`` hosts, and what is said of those on which it failed."""
    told = [
        msgspec.json.decode(report.looks[_TORCH], type=probe.Stage | probe.Failure)
        for report in reports
        if _TORCH in report.looks
    ]
    failures = [each for each in told if isinstance(each, probe.Failure)]
    return len(told) == size, judge(failures, endpoint)


def waiting_s(*, all_imported: bool) -> float:
    """How long the ranks of such a job wait for each other."""
    return _WAIT_S if all_imported else _SLOW_IMPORT_S


class Crew(msgspec.Struct, frozen=True):
    """The hosts of such a job in the order of its ranks, the one that keeps the store first: name, and processes."""

    hosts: tuple[tuple[str, int], ...] = ()

    @property
    def homes(self) -> tuple[str, ...]:
        """The host of each rank."""
        return tuple(name for name, processes in self.hosts for _ in range(processes))

    def plan(self, at: int, **more: Any) -> probe.Plan:
        """The plan of the host at this place."""
        sizes = [processes for _, processes in self.hosts]
        return probe.Plan(rank=sum(sizes[:at]), world=sum(sizes), local=sizes[at], **more)


def make(small_job: probe.Probe, plan: probe.Plan, crew: Crew, tell: Callable[[Passage], None]) -> tuple[Finding, ...]:
    """Make the job together with the other hosts; ``tell`` hears of each stage, and what failed is judged."""
    outcome = small_job.run(plan, lambda entry: tell(_passage(entry)))
    return judge(outcome.failures, f"{plan.address}:{plan.port}", crew.homes)


def _passage(entry: probe.Stage | probe.Failure) -> Passage:
    several = f" of {entry.processes}" if entry.processes else ""
    if isinstance(entry, probe.Failure):
        text = f"rank {entry.rank} ({entry.host}): {entry.why}"
        return Passage(name=entry.stage + several, state=State.ERROR, text=text)
    return Passage(
        name=entry.name + several, state=State.OK, text=entry.detail, took_s=entry.took_s, timings=entry.timings
    )  # fmt: skip
