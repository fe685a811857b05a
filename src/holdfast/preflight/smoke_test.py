"""The torch.distributed smoke test of several hosts whose sockets were probed before.

Each host runs one or more processes; the steps have 1, 2, 4, … processes, host by host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core.findings import Finding
from holdfast.preflight import torch_smoke_test
from holdfast.preflight.rendezvous import PeerReport
from holdfast.preflight.smoke_test_rules import judge
from holdfast.report.check_table import CheckState

#: How long the rendezvous waits for the import of torch, which may be read from a slow disk, and
#: how long ranks wait for each other afterwards, if all imported it and if some did not.
_IMPORT_S, _WAIT_S, _SLOW_IMPORT_S = 8.0, 5.0, 60.0
_TORCH = "torch"


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """One stage as this rank observed it: state, description and duration."""

    name: str
    state: CheckState
    text: str
    took_s: float | None = None
    timings: tuple[torch_smoke_test.StageTiming, ...] = ()

    @property
    def line(self) -> str:
        """Return description and duration for the terminal."""
        if self.took_s is None:
            return self.text
        took = f"{self.took_s * 1e3:,.0f} ms"
        return f"{self.text} ({took})" if self.text else took


async def import_result(process: torch_smoke_test.SmokeTest) -> Mapping[str, msgspec.Raw]:
    """Return the result of importing torch, for this host's report; empty if it takes too long."""
    result = await asyncio.to_thread(process.wait_for_import, _IMPORT_S)
    return {_TORCH: msgspec.Raw(msgspec.json.encode(result))} if result is not None else {}


def judge_imports(
    reports: Iterable[PeerReport], size: int, endpoint: str
) -> tuple[bool, tuple[Finding, ...]]:
    """Return whether all ``size`` hosts imported torch, and findings for those that failed."""
    results = [
        msgspec.json.decode(
            report.results[_TORCH],
            type=torch_smoke_test.SmokeTestStage | torch_smoke_test.SmokeTestFailure,
        )
        for report in reports
        if _TORCH in report.results
    ]
    failures = [each for each in results if isinstance(each, torch_smoke_test.SmokeTestFailure)]
    return len(results) == size, judge(failures, endpoint)


def waiting_s(*, all_imported: bool) -> float:
    """Return how long the ranks wait for each other, in seconds."""
    return _WAIT_S if all_imported else _SLOW_IMPORT_S


class SmokeTestHosts(msgspec.Struct, frozen=True):
    """The hosts of the smoke test in rank order, the store's host first: (name, process count)."""

    hosts: tuple[tuple[str, int], ...] = ()

    @property
    def rank_hosts(self) -> tuple[str, ...]:
        """Return the host of each rank."""
        return tuple(name for name, processes in self.hosts for _ in range(processes))

    def plan(self, index: int, **options: Any) -> torch_smoke_test.SmokeTestPlan:
        """Return the plan of the host at this index."""
        sizes = [processes for _, processes in self.hosts]
        return torch_smoke_test.SmokeTestPlan(
            rank=sum(sizes[:index]), world=sum(sizes), local=sizes[index], **options
        )


def run_smoke_test(
    process: torch_smoke_test.SmokeTest,
    plan: torch_smoke_test.SmokeTestPlan,
    crew: SmokeTestHosts,
    on_stage: Callable[[StageResult], None],
) -> tuple[Finding, ...]:
    """Run the smoke test with the other hosts; return findings. ``on_stage`` gets each result."""
    outcome = process.run(plan, lambda entry: on_stage(_stage_result(entry)))
    return judge(outcome.failures, f"{plan.address}:{plan.port}", crew.rank_hosts)


def _stage_result(
    entry: torch_smoke_test.SmokeTestStage | torch_smoke_test.SmokeTestFailure,
) -> StageResult:
    several = f" of {entry.processes}" if entry.processes else ""
    if isinstance(entry, torch_smoke_test.SmokeTestFailure):
        text = f"rank {entry.rank} ({entry.host}): {entry.why}"
        return StageResult(name=entry.stage + several, state=CheckState.ERROR, text=text)
    return StageResult(
        name=entry.name + several,
        state=CheckState.OK,
        text=entry.detail,
        took_s=entry.took_s,
        timings=entry.timings,
    )
