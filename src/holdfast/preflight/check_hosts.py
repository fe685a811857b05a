"""Check several hosts together.

Each peer checks its host, the leader judges, all get the result.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core import verdicts
from holdfast.core.atomic_files import write_atomic
from holdfast.core.exit_status import status_of_findings
from holdfast.core.findings import Finding, Level, Unknown, Verdict
from holdfast.host.checks import CHECKS, CheckContext, CheckResult, select_checks
from holdfast.host.checks.devices.gpus import GpusResult
from holdfast.host.checks.runner import CheckRun, run_checks
from holdfast.host.checks.system.software import SoftwareResult
from holdfast.preflight import host_differences, rendezvous_rules, smoke_test, torch_smoke_test
from holdfast.preflight.check import JudgedCheck, judge_checks
from holdfast.preflight.rendezvous import (
    ClockOffset,
    LinkMeasurement,
    Observations,
    Participant,
    Peer,
    PeerReport,
)
from holdfast.preflight.rendezvous.rendezvous import (
    RendezvousConfig,
    RendezvousOutcome,
    comparable_variables,
    run_rendezvous,
)
from holdfast.preflight.rendezvous_rules import attendance, link_speeds, matrix
from holdfast.preflight.smoke_test import SmokeTestHosts, StageResult
from holdfast.report.check_table import CheckState

#: Checks that run before this command listens on ports itself.
_BEFORE = frozenset({"ports"})
#: Time limit of a host's checks together; the leader waits no longer than REPORT_LIMIT_S for a
#: report.
CHECKS_S = 7.0
#: Maximum number of smoke-test processes per host.
MAX_WORKERS = 64


class MultiHostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The shared result on all hosts.

    ``labels``: the peers in the order of ``matrix_rows``. ``missing``: absent node ranks, if known.
    ``peer_keys``: keys of the peers in rank order of the smoke test, whose processes are ``crew``.
    ``stages``: smoke-test stages as this peer observed them.
    """

    checks: tuple[JudgedCheck, ...]
    reach: tuple[Finding, ...]
    verdict: Verdict
    nodes: int
    labels: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    missing_count: int = 0
    matrix_rows: tuple[str, ...] = ()
    links: tuple[LinkMeasurement, ...] = ()
    clocks: tuple[ClockOffset, ...] = ()
    passing: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    alone: str = ""
    elapsed_s: float = 0.0
    peer_keys: tuple[str, ...] = ()
    crew: SmokeTestHosts = SmokeTestHosts()
    torch: bool = False
    stages: tuple[StageResult, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings between hosts, then those of each host's checks."""
        return (*self.reach, *(finding for check in self.checks for finding in check.findings))

    @property
    def exit_status(self) -> int:
        """Return 0 OK, 1 errors found, 3 if nothing could be observed."""
        unknown = all(check.state is CheckState.UNKNOWN for check in self.checks)
        return status_of_findings(self.findings, inconclusive=not self.labels and unknown)


def check_hosts(
    context: CheckContext,
    config: RendezvousConfig,
    names: Sequence[str] = (),
    *,
    smoke: bool = True,
    now: Callable[[], float] = time.time,
) -> MultiHostReport:
    """Check this host, join the other hosts, and return the shared result.

    If all hosts reach each other and ``smoke`` is set, a torch.distributed smoke test follows, with
    ``context.workers`` ranks per host (default: one per visible GPU, at least one).

    Raises:
        UnknownName: there is no such check.
    """
    begun = time.monotonic()
    checks = select_checks(tuple(names))
    context = replace(context, within_s=min(context.within_s, CHECKS_S))
    # Ports are checked before this command itself listens on some of them.
    early = run_checks(context, [check for check in checks if check.name in _BEFORE])
    later = [check for check in checks if check.name not in _BEFORE]
    outcome, report = asyncio.run(
        _rendezvous(context, config, lambda: {**early, **run_checks(context, later)}, now)
    )
    shared = outcome.decode_result(MultiHostReport)
    if isinstance(shared, Unknown):
        hosts = _report_without_peers(outcome, shared, report, config)
    elif smoke and not any(finding.level is Level.ERROR for finding in shared.reach):
        hosts = _run_smoke_test(shared, config, outcome.peer)
    else:
        hosts = shared
    return replace(hosts, elapsed_s=round(time.monotonic() - begun, 3))


async def _rendezvous(
    context: CheckContext,
    config: RendezvousConfig,
    run_all: Callable[[], Mapping[str, CheckRun]],
    now: Callable[[], float],
) -> tuple[RendezvousOutcome, PeerReport]:
    runs = asyncio.ensure_future(asyncio.to_thread(run_all))

    async def report() -> PeerReport:
        return _build_report(await asyncio.shield(runs), context, now())

    outcome = await run_rendezvous(
        config, report, lambda observed: msgspec.json.encode(judge_hosts(observed)), now
    )
    return outcome, await report()


def _run_smoke_test(
    hosts: MultiHostReport, config: RendezvousConfig, peer: Peer
) -> MultiHostReport:
    """Add the smoke test's result, or why it did not run. torch is imported only now."""
    if not hosts.torch or peer.key not in hosts.peer_keys:
        why = "torch.distributed smoke test: torch is not known to be installed on every host"
        return replace(hosts, verdict=replace(hosts.verdict, unseen=(*hosts.verdict.unseen, why)))
    stages: list[StageResult] = []
    plan = hosts.crew.plan(hosts.peer_keys.index(peer.key), address=config.host, port=config.port)
    with torch_smoke_test.SmokeTest(plan.rank) as process:
        findings = smoke_test.run_smoke_test(process, plan, hosts.crew, stages.append)
    reach = (*hosts.reach, *findings)
    blamed = {finding.subject.host for finding in reach if finding.level is Level.ERROR}
    failing = tuple(label for label in hosts.passing if label.split(" (node ")[0] in blamed)
    return replace(
        hosts,
        reach=reach,
        stages=tuple(stages),
        verdict=_build_verdict(reach, hosts.checks, hosts.verdict.unseen),
        passing=tuple(label for label in hosts.passing if label not in failing),
        failing=(*hosts.failing, *failing),
    )


def _build_report(runs: Mapping[str, CheckRun], context: CheckContext, at: float) -> PeerReport:
    host = os.uname().nodename
    results = {name: msgspec.Raw(msgspec.json.encode(run.result)) for name, run in runs.items()}
    return PeerReport(
        host=host,
        at=at,
        environ=comparable_variables(context.environ),
        workers=_count_workers(runs, context),
        results=results,
        judged=msgspec.Raw(msgspec.json.encode(judge_checks(runs, context, host, at))),
    )


def _count_workers(runs: Mapping[str, CheckRun], context: CheckContext) -> int:
    """Return the number of smoke-test processes of this host."""
    result = runs["gpus"].result if "gpus" in runs else None
    visible = (
        len(result.visible.gpus)
        if isinstance(result, GpusResult) and result.visible is not None
        else 0
    )
    return min(context.workers or max(visible, 1), MAX_WORKERS)


def judge_hosts(observed: Observations) -> MultiHostReport:
    """Return the shared result, as the leader judges it."""
    results = {number: dict(_comparable_results(r)) for number, r in observed.reports.items()}
    reach = (*rendezvous_rules.judge(observed), *_compare_hosts(observed, results))
    checks = tuple(
        check
        for number in sorted(observed.reports)
        for check in _decode_checks(observed.reports[number])
    )
    labels = tuple(each.peer.label for each in observed.participants)
    failing = rendezvous_rules.failing_hosts(
        observed, (*reach, *(finding for check in checks for finding in check.findings))
    )
    nodes, count = attendance.missing_nodes(observed)
    in_rank_order = sorted(observed.participants, key=_leader_first)
    workers = {number: report.workers for number, report in observed.reports.items()}
    unseen = (*rendezvous_rules.unobserved(observed), *_unseen_of(checks))
    return MultiHostReport(
        checks=checks,
        reach=reach,
        nodes=observed.nodes,
        labels=labels,
        missing=tuple(nodes),
        missing_count=count,
        matrix_rows=matrix.matrix_rows(observed, link_speeds.slow_pairs(observed)),
        links=observed.links,
        clocks=observed.clocks,
        verdict=_build_verdict(reach, checks, unseen),
        passing=tuple(label for label in labels if label not in failing),
        failing=(
            *(label for label in labels if label in failing),
            *(f"node {node}" for node in nodes),
        ),
        torch=_all_have_torch(observed, results),
        peer_keys=tuple(each.peer.key for each in in_rank_order),
        crew=SmokeTestHosts(
            tuple((each.peer.host, workers.get(each.number, 1)) for each in in_rank_order)
        ),
    )


def _leader_first(participant: Participant) -> tuple[bool, int]:
    """Sort the leader first: the job's store is at the endpoint, which is on its host."""
    return not participant.leads, participant.number


def _all_have_torch(
    observed: Observations, results: Mapping[int, Mapping[str, CheckResult]]
) -> bool:
    software = [results.get(each.number, {}).get("software") for each in observed.participants]
    return all(isinstance(each, SoftwareResult) and "torch" in each.packages for each in software)


def _compare_hosts(
    observed: Observations, results: Mapping[int, Mapping[str, CheckResult]]
) -> tuple[Finding, ...]:
    """Return the differences between the hosts that sent a report."""
    labels = {number: observed.participants[number].peer.label for number in observed.reports}
    environs = {labels[number]: report.environ for number, report in observed.reports.items()}
    return host_differences.judge(
        {labels[number]: result for number, result in results.items()}, environs
    )


def _comparable_results(report: PeerReport) -> Iterator[tuple[str, CheckResult]]:
    """Yield the check results that can be decoded; others are of another version."""
    for name in host_differences.COMPARED:
        with suppress(msgspec.DecodeError, KeyError):
            yield name, msgspec.json.decode(report.results[name], type=CHECKS[name].result_type)


def _decode_checks(report: PeerReport) -> tuple[JudgedCheck, ...]:
    try:
        return msgspec.json.decode(report.judged, type=tuple[JudgedCheck, ...])
    except msgspec.DecodeError:
        return ()


def _report_without_peers(
    outcome: RendezvousOutcome, why: Unknown, report: PeerReport, config: RendezvousConfig
) -> MultiHostReport:
    """Return the result of a peer that did not get one from the leader."""
    reach = rendezvous_rules.judge_unreached(outcome.peer, outcome.access, why, config.wait_s)
    checks = _decode_checks(report)
    unseen = (f"the other hosts: {why.why}", *_unseen_of(checks))
    return MultiHostReport(
        checks=checks,
        reach=reach,
        nodes=config.nodes,
        alone=why.why,
        failing=(outcome.peer.label,),
        verdict=_build_verdict(reach, checks, unseen),
    )


def _unseen_of(checks: Sequence[JudgedCheck]) -> tuple[str, ...]:
    return tuple(f"{check.host}: {check.name}: {why}" for check in checks for why in check.unseen)


def _build_verdict(
    reach: Sequence[Finding], checks: Sequence[JudgedCheck], unseen: Sequence[str]
) -> Verdict:
    """Order findings: those between hosts first, because no job starts without the other hosts."""
    between = verdicts.host_verdict(reach, unseen)
    findings = [finding for check in checks for finding in check.findings]
    if between.root is None:
        return verdicts.host_verdict([*reach, *findings], unseen)
    others = verdicts.host_verdict(findings, ())
    suspects = (*between.suspects, *([others.root] if others.root else []), *others.suspects)
    return replace(between, suspects=suspects)


def write_host_lists(hosts: MultiHostReport, prefix: str, names: Sequence[str] = ()) -> None:
    """Write PREFIXpassing.txt and PREFIXfailing.txt, one host per line, for the scheduler.

    ``names``: the scheduler's names of the nodes, in their order; else the hosts' own names.

    Raises:
        MissingFile: they cannot be written.
    """
    for name, labels in (("passing", hosts.passing), ("failing", hosts.failing)):
        lines = "".join(f"{_scheduler_name(label, names)}\n" for label in labels)
        write_atomic(Path(f"{prefix}{name}.txt"), lines.encode(errors="surrogateescape"))


def _scheduler_name(label: str, names: Sequence[str]) -> str:
    """Return the name of the host labelled ``HOST (node N)``."""
    host, _, number = label.removesuffix(")").partition(" (node ")
    node = int(number) if number.isdecimal() else len(names)
    return names[node] if node < len(names) else host
