"""Why the beginning of a small job failed: from what its ranks failed with to findings.

The sockets between the hosts have been tried before (``rules/reach``), so that this speaks of what only the real thing
shows: which address gloo or NCCL publishes, what torch says, whether the sums are right.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from holdfast.findings import Fact, Finding, Subject, finding
from holdfast.report.ranksets import say_ranks
from holdfast.rules.causes import by_name
from holdfast.runtime.probe import Failure

#: Beyond this a message does not fit into one packet of an ordinary network.
_PACKET_BYTES = 1460
_TOO_LONG = re.compile(r"did not end within|[Tt]imed out waiting|Connection timed out|Connect timeout|wait timeout")
_SIZE = re.compile(r"all-reduce of ([\d.]+) (B|KiB|MiB)$")
_CRASHES = "|".join(
    str(int(each)) for each in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
)
_MOST_HOSTS = 8
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
#: What torch or the probe says -> cause, sentence, confidence. The first row that fits counts.
_WORDS = (
    (r"EADDRINUSE", "port-in-use", "{who} cannot keep the store at {endpoint}: another process has the port", 0.95),
    (r"Unable to find address for: (\S+)", "network-interface-wrong",
     "{who} is told to use the interface {0}, which it does not have; the others would wait for it", 0.95),
    (r"Connection refused, remote=\[(127\.[^\]]+|::1)\]", "network-interface-wrong",
     "a peer of {who} publishes {0}, which leads nowhere from another host", 0.95),
    (r"Connection refused, remote=\[([^\]]+)\]:(\d+)", "firewall-blocked-ports",
     "{who} is refused at {0}, port {1}, where a peer listens for it: data ports are blocked", 0.85),
    (r"sums are wrong", "collective-result-wrong", "{who} got wrong sums in an {stage}: {why}", 0.95),
    (rf"died of signal ({_CRASHES})$", "segfault-in-worker", "the process of {who} {why} in {stage}", 0.9),
    (r"died of signal \d+$", "rank-killed", "the process of {who} {why} in {stage}", 0.9),
)  # fmt: skip
_ORIGIN = "holdfast check --connect"


def judge(failures: Sequence[Failure], endpoint: str, homes: Sequence[str] = ()) -> tuple[Finding, ...]:
    """One finding a kind of failure; ranks that merely waited for one that says more are its evidence.

    ``homes``: the host of each rank, where that is known.
    """
    telling = [each for each in failures if not _TOO_LONG.search(each.why)] or list(failures)
    evidence = tuple(_fact(each) for each in failures)
    found: dict[str, Finding] = {}
    for each in telling:
        claim = _claim(each, failures, endpoint, evidence, homes)
        found.setdefault(claim.message, claim)
    return tuple(found.values())


def _fact(failure: Failure) -> Fact:
    among = f" among {failure.processes} ranks" if failure.processes > 1 else ""
    text = f"rank {failure.rank} failed in {failure.stage}{among}: {failure.why}"
    return Fact(text=text, origin=_ORIGIN, rank=failure.rank, host=failure.host)


def _claim(
    failure: Failure, failures: Sequence[Failure], endpoint: str, evidence: tuple[Fact, ...], homes: Sequence[str]
) -> Finding:
    who = f"rank {failure.rank} ({failure.host})"
    name, message, confidence = _said(failure, who, endpoint, homes) or _waited(failures, who, failure)
    rank = failure.missing[0] if failure.missing else failure.rank
    host = (homes[rank] if rank < len(homes) else None) if failure.missing else failure.host
    return finding(
        by_name(name), message, subject=Subject(rank=rank, host=host), evidence=evidence, confidence=confidence
    )


def _said(failure: Failure, who: str, endpoint: str, homes: Sequence[str]) -> tuple[str, str, float] | None:
    """Cause, sentence and confidence, where the failure itself says what it is."""
    if failure.missing:
        missing, at = say_ranks(failure.missing), f"{failure.stage} at {endpoint}"
        there = dict.fromkeys(homes[rank] for rank in failure.missing if rank < len(homes))
        missing += f" ({', '.join(list(there)[:_MOST_HOSTS])})" if there else ""
        return "store-wait", f"{missing} reached no further: the others wait for it in {at}", 0.9
    for pattern, name, sentence, confidence in _WORDS:
        if found := re.search(pattern, failure.why):
            told = sentence.format(*found.groups(), who=who, endpoint=endpoint, stage=failure.stage, why=failure.why)
            return name, told, confidence
    if failure.stage == "import":
        return "python-exception-on-one-rank", f"torch cannot be imported by {who}: {failure.why}", 0.95
    if not _TOO_LONG.search(failure.why) and failure.stage in ("group", "step", "store"):
        return "python-exception-on-one-rank", f"{who} failed in {failure.stage}: {failure.why}", 0.6
    return None


def _waited(failures: Sequence[Failure], who: str, failure: Failure) -> tuple[str, str, float]:
    """The same where all that is known is that nothing came."""
    ranks = say_ranks(sorted({each.rank for each in failures}))
    if failure.stage in ("store", "group"):
        reached = "reached the store, and cannot open connections to each other on the ports that the kernel chose"
        return "firewall-blocked-ports", f"{ranks} {reached}", 0.7
    size = _SIZE.match(failure.stage)
    if size and float(size[1]) * _UNITS[size[2]] > _PACKET_BYTES:
        lost = "smaller messages passed: packets of full size are lost on the way (MTU)"
        return "network-fabric-fault", f"{ranks} got no further in an {failure.stage}, and {lost}", 0.8
    return "network-fabric-fault", f"{who} got no further in {failure.stage}: {failure.why}", 0.5
