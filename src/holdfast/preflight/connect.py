"""Test whether ranks can start a job: their hosts probe every pair, then torch runs a smoke test.

The stages are those of a job's start: resolve, route, TCP, all pairs of hosts (sockets only, which
explain failures and need no torch), then store, group, barrier and verified sums, with torch. The
first failed stage is the last one, on every rank, and all ranks get the reason.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.core import verdicts
from holdfast.core.exit_status import status_of_findings
from holdfast.core.findings import Finding, Level, Unknown, Verdict
from holdfast.core.text import pluralize
from holdfast.preflight import rendezvous_rules, smoke_test, torch_smoke_test
from holdfast.preflight.rendezvous import (
    ConnectAttempt,
    ConnectOutcome,
    EndpointAccess,
    Observations,
    PeerReport,
)
from holdfast.preflight.rendezvous.rendezvous import (
    RendezvousConfig,
    RendezvousOutcome,
    run_rendezvous,
)
from holdfast.preflight.smoke_test import SmokeTestHosts, StageResult
from holdfast.report.check_table import CheckLine, CheckState

QUESTION = "can these ranks start a job?"


class ConnectionReport(msgspec.Struct, frozen=True):
    """All stages, and the verdict."""

    host: str
    stages: tuple[StageResult, ...]
    findings: tuple[Finding, ...]
    verdict: Verdict
    elapsed_s: float

    @property
    def exit_status(self) -> int:
        """Return 0 if all stages passed, 1 if one failed."""
        return status_of_findings(self.findings)

    @property
    def lines(self) -> tuple[CheckLine, ...]:
        """Return the stages as lines for the terminal."""
        return tuple(
            CheckLine(stage.name, self.host, stage.state, stage.line) for stage in self.stages
        )


class _SharedResult(msgspec.Struct, frozen=True):
    """The leader's result for all peers; ``imported``: every host imported torch."""

    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    summary: str
    imported: bool = False
    crew: SmokeTestHosts = SmokeTestHosts()


def check_connections(
    config: RendezvousConfig,
    backend: str = "",
    on_stage: Callable[[StageResult], None] | None = None,
    *,
    workers: int = 1,
) -> ConnectionReport:
    """Run all stages together with the other peers; ``on_stage`` gets each result as it ends.

    Each peer runs ``workers`` processes of the smoke test: one where a launcher started one per
    rank.
    """
    begun, stages = time.monotonic(), []

    def add(stage: StageResult) -> None:
        stages.append(stage)
        if on_stage is not None:
            on_stage(stage)

    rank, endpoint = config.node or 0, f"{config.host}:{config.port}"
    with torch_smoke_test.SmokeTest(rank) as process:  # imports torch during the rendezvous
        outcome = asyncio.run(
            run_rendezvous(
                config, partial(_build_report, process, workers), partial(_judge, endpoint)
            )
        )
        shared = _result_of(outcome, config)
        for stage in (*_access_stages(outcome.access), _hosts_stage(outcome, shared, begun)):
            add(stage)
        findings = shared.findings
        if shared.crew.hosts and not any(finding.level is Level.ERROR for finding in findings):
            wait_s = smoke_test.waiting_s(all_imported=shared.imported)
            plan = shared.crew.plan(
                rank, address=config.host, port=config.port, backend=backend, wait_s=wait_s
            )
            findings += smoke_test.run_smoke_test(process, plan, shared.crew, add)
    return ConnectionReport(
        os.uname().nodename,
        tuple(stages),
        findings,
        verdicts.host_verdict(findings, shared.unseen, QUESTION),
        round(time.monotonic() - begun, 3),
    )


async def _build_report(process: torch_smoke_test.SmokeTest, workers: int) -> PeerReport:
    """Report the import of torch on this host; the host's own checks belong to another command."""
    results = dict(await smoke_test.import_result(process))
    return PeerReport(host=os.uname().nodename, results=results, workers=workers)


def _judge(endpoint: str, observed: Observations) -> bytes:
    """Return the encoded result for all peers."""
    size = len(observed.participants)
    trips = [link.round_trip_s for link in observed.links if link.round_trip_s is not None]
    slowest = f", round trips up to {max(trips) * 1e3:.2f} ms" if trips else ""
    summary = f"{pluralize(size, 'host')}, all pairs probed with small and large messages{slowest}"
    imported, failures = smoke_test.judge_imports(observed.reports.values(), size, endpoint)
    findings = (*rendezvous_rules.judge(observed), *failures)
    workers = {number: report.workers for number, report in observed.reports.items()}
    in_rank_order = sorted(observed.participants, key=lambda each: each.peer.node or 0)
    crew = SmokeTestHosts(
        tuple((each.peer.host, workers.get(each.number, 1)) for each in in_rank_order)
    )
    unseen = tuple(rendezvous_rules.unobserved(observed))
    return msgspec.json.encode(_SharedResult(findings, unseen, summary, imported, crew))


def _result_of(outcome: RendezvousOutcome, config: RendezvousConfig) -> _SharedResult:
    """Return the leader's result, or what this peer observed itself."""
    shared = outcome.decode_result(_SharedResult)
    if isinstance(shared, Unknown):
        findings = rendezvous_rules.judge_unreached(
            outcome.peer, outcome.access, shared, config.wait_s
        )
        return _SharedResult(findings, (shared.why,), "")
    return shared


def _access_stages(access: EndpointAccess) -> list[StageResult]:
    """Return the stages resolve, route and tcp up to the first failure."""
    if isinstance(access.addresses, Unknown):
        text = f"{access.host}: {access.addresses.why}"
        return [
            StageResult(name="resolve", state=CheckState.ERROR, text=text, took_s=access.resolve_s)
        ]
    text = f"{access.host} is {', '.join(access.addresses)}" + (
        ", an address of this host" * access.owned
    )
    stages = [StageResult(name="resolve", state=CheckState.OK, text=text, took_s=access.resolve_s)]
    if not access.source:
        text = f"no route to {access.addresses[0]}"
        return [*stages, StageResult(name="route", state=CheckState.ERROR, text=text)]
    text = f"from {access.source} on {access.interface}"
    stages.append(StageResult(name="route", state=CheckState.OK, text=text))
    if access.main is None:
        bound = access.bound or "not tried"
        state = CheckState.OK if bound == "listening" else CheckState.ERROR
        text = f"port {access.port} here: {bound}"
        return [*stages, StageResult(name="tcp", state=state, text=text)]
    return [*stages, _tcp_stage(access.main)]


def _tcp_stage(attempt: ConnectAttempt) -> StageResult:
    state = CheckState.OK if attempt.outcome is ConnectOutcome.OPEN else CheckState.ERROR
    detail = f" ({attempt.detail})" if attempt.detail else ""
    text = f"{attempt.address}:{attempt.port}: {attempt.outcome}{detail}"
    return StageResult(name="tcp", state=state, text=text, took_s=attempt.elapsed_s)


def _hosts_stage(outcome: RendezvousOutcome, shared: _SharedResult, begun: float) -> StageResult:
    """Return the stage that covers all pairs of hosts."""
    took_s = round(time.monotonic() - begun, 3)
    if isinstance(outcome.content, Unknown):
        text, failed = outcome.content.why, True
    else:
        errors = [finding.message for finding in shared.findings if finding.level is Level.ERROR]
        text, failed = (errors or [shared.summary])[0], bool(errors)
    state = CheckState.ERROR if failed else CheckState.OK
    return StageResult(name="hosts", state=state, text=text, took_s=took_s)


def connect_json(report: ConnectionReport) -> dict[str, Any]:
    """Return the stages as plain data."""
    data: dict[str, Any] = {"host": report.host, "stages": msgspec.to_builtins(report.stages)}
    return data
