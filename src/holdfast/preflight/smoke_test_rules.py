"""Rules over the failures of the smoke test: from what its ranks reported to findings.

The sockets between the hosts were probed before (``rendezvous_rules``), so these rules cover what
only torch shows: the address that gloo or NCCL publishes, torch's errors, and wrong sums.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from holdfast.causes.network.firewall_blocked_ports import FIREWALL_BLOCKED_PORTS
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.causes.network.port_in_use import PORT_IN_USE
from holdfast.causes.numerics.collective_result_wrong import COLLECTIVE_RESULT_WRONG
from holdfast.causes.process.python_exception_on_one_rank import PYTHON_EXCEPTION_ON_ONE_RANK
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.segfault_in_worker import SEGFAULT_IN_WORKER
from holdfast.causes.sync.store_wait import STORE_WAIT
from holdfast.core.findings import Cause, Fact, Finding, Subject, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.preflight.torch_smoke_test import SmokeTestFailure

#: Larger messages do not fit into one packet of an ordinary network.
_PACKET_BYTES = 1460
_TIMEOUT = re.compile(
    r"did not end within|[Tt]imed out waiting|Connection timed out|Connect timeout|wait timeout"
)
_SIZE = re.compile(r"all-reduce of ([\d.]+) (B|KiB|MiB)$")
_CRASHES = "|".join(
    str(int(each))
    for each in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
)
_MAX_HOSTS = 8
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
#: Pattern of the failure -> cause, sentence, confidence. The first matching row counts.
_PATTERNS = (
    (
        r"EADDRINUSE",
        PORT_IN_USE,
        "{who} cannot serve the store at {endpoint}: another process uses the port",
        0.95,
    ),
    (
        r"Unable to find address for: (\S+)",
        NETWORK_INTERFACE_WRONG,
        (
            "{who} is configured to use the interface {0}, which it does not have; the others "
            "would wait"
        ),
        0.95,
    ),
    (
        r"Connection refused, remote=\[(127\.[^\]]+|::1)\]",
        NETWORK_INTERFACE_WRONG,
        "a peer of {who} publishes {0}, which is not reachable from another host",
        0.95,
    ),
    (
        r"Connection refused, remote=\[([^\]]+)\]:(\d+)",
        FIREWALL_BLOCKED_PORTS,
        "{who} is refused at {0}, port {1}, where a peer listens for it: data ports are blocked",
        0.85,
    ),
    (r"sums are wrong", COLLECTIVE_RESULT_WRONG, "{who} got wrong sums in an {stage}: {why}", 0.95),
    (
        rf"died of signal ({_CRASHES})$",
        SEGFAULT_IN_WORKER,
        "the process of {who} {why} in {stage}",
        0.9,
    ),
    (r"died of signal \d+$", RANK_KILLED, "the process of {who} {why} in {stage}", 0.9),
)
_ORIGIN = "holdfast check --connect"


def judge(
    failures: Sequence[SmokeTestFailure], endpoint: str, rank_hosts: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """Return one finding per kind of failure; ranks that only timed out become evidence.

    ``rank_hosts``: the host of each rank, if known.
    """
    informative = [each for each in failures if not _TIMEOUT.search(each.why)] or list(failures)
    evidence = tuple(_fact(each) for each in failures)
    findings: dict[str, Finding] = {}
    for failure in informative:
        finding = _finding(failure, failures, endpoint, evidence, rank_hosts)
        findings.setdefault(finding.message, finding)
    return tuple(findings.values())


def _fact(failure: SmokeTestFailure) -> Fact:
    among = f" among {failure.processes} ranks" if failure.processes > 1 else ""
    text = f"rank {failure.rank} failed in {failure.stage}{among}: {failure.why}"
    return Fact(text=text, origin=_ORIGIN, rank=failure.rank, host=failure.host)


def _finding(
    failure: SmokeTestFailure,
    failures: Sequence[SmokeTestFailure],
    endpoint: str,
    evidence: tuple[Fact, ...],
    rank_hosts: Sequence[str],
) -> Finding:
    who = f"rank {failure.rank} ({failure.host})"
    cause, message, confidence = _explain(failure, who, endpoint, rank_hosts) or _explain_timeout(
        failures, who, failure
    )
    rank = failure.missing[0] if failure.missing else failure.rank
    host = (
        (rank_hosts[rank] if rank < len(rank_hosts) else None) if failure.missing else failure.host
    )
    return make_finding(
        cause,
        message,
        subject=Subject(rank=rank, host=host),
        evidence=evidence,
        confidence=confidence,
    )


def _explain(
    failure: SmokeTestFailure, who: str, endpoint: str, rank_hosts: Sequence[str]
) -> tuple[Cause, str, float] | None:
    """Return cause, sentence and confidence if the failure identifies its cause."""
    if failure.missing:
        missing, stage = describe_ranks(failure.missing), f"{failure.stage} at {endpoint}"
        hosts = dict.fromkeys(
            rank_hosts[rank] for rank in failure.missing if rank < len(rank_hosts)
        )
        missing += f" ({', '.join(list(hosts)[:_MAX_HOSTS])})" if hosts else ""
        return STORE_WAIT, f"{missing} did not reach {stage}; the other ranks wait there", 0.9
    for pattern, cause, sentence, confidence in _PATTERNS:
        if match := re.search(pattern, failure.why):
            message = sentence.format(
                *match.groups(), who=who, endpoint=endpoint, stage=failure.stage, why=failure.why
            )
            return cause, message, confidence
    if failure.stage == "import":
        return PYTHON_EXCEPTION_ON_ONE_RANK, f"{who} cannot import torch: {failure.why}", 0.95
    if not _TIMEOUT.search(failure.why) and failure.stage in ("group", "step", "store"):
        return (
            PYTHON_EXCEPTION_ON_ONE_RANK,
            f"{who} failed in {failure.stage}: {failure.why}",
            0.6,
        )
    return None


def _explain_timeout(
    failures: Sequence[SmokeTestFailure], who: str, failure: SmokeTestFailure
) -> tuple[Cause, str, float]:
    """Return the same for a failure that is only a timeout."""
    ranks = describe_ranks(sorted({each.rank for each in failures}))
    if failure.stage in ("store", "group"):
        reached = (
            "reached the store but cannot connect to each other on the ports chosen by the kernel"
        )
        return FIREWALL_BLOCKED_PORTS, f"{ranks} {reached}", 0.7
    size = _SIZE.match(failure.stage)
    if size and float(size[1]) * _UNITS[size[2]] > _PACKET_BYTES:
        lost = "smaller messages passed: full-size packets are lost (MTU)"
        return NETWORK_FABRIC_FAULT, f"{ranks} did not complete an {failure.stage}; {lost}", 0.8
    message = f"{who} did not complete {failure.stage}: {failure.why}"
    return NETWORK_FABRIC_FAULT, message, 0.5
