"""Judges whether the rendezvous ports are free, and will stay free."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.network.port_in_use import PORT_IN_USE
from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.findings import Finding, Level, Remedy, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.ports import PortHolder, PortsResult, describe_holder

#: Fewer ports run out with many ranks: each has a connection to each other, and a closed one keeps
#: its port for 60 s.
_MIN_EPHEMERAL = 2000


def judge(result: PortsResult, context: CheckContext) -> Iterator[Finding]:
    """A taken port is an error for the endpoint's own, a warning for the default, else a note.

    Then the range of ephemeral ports is judged.
    """
    if not isinstance(result.holders, Unknown):
        first_holders = {holder.port: holder for holder in reversed(result.holders)}
        for port in sorted(first_holders):
            yield _judge_taken_port(result, first_holders[port], context)
    if isinstance(result.ephemeral, Unknown):
        return
    first, last = result.ephemeral
    wanted = result.endpoint if result.endpoint is not None else result.wanted[0]
    if first <= wanted <= last and not _is_reserved(wanted, result.reserved):
        yield _port_finding(
            result,
            Level.NOTE,
            f"port {wanted} is in the ephemeral range {first}-{last}: an outgoing connection may "
            "occupy it when the job starts",
            0.5,
            by_hand(
                "Exclude the ports of jobs from the ephemeral range.",
                f"sysctl -w net.ipv4.ip_local_reserved_ports={result.wanted[0]}-{result.wanted[1]}",
            ),
        )
    if last - first < _MIN_EPHEMERAL:
        yield _port_finding(
            result,
            Level.WARNING,
            f"only {last - first + 1} ephemeral ports ({first}-{last}): many ranks exhaust them",
            0.6,
            by_hand("Widen the range.", 'sysctl -w net.ipv4.ip_local_port_range="32768 60999"'),
        )


def _judge_taken_port(result: PortsResult, holder: PortHolder, context: CheckContext) -> Finding:
    port = holder.port
    if port == result.endpoint:
        level, why = Level.ERROR, "the rendezvous of this job cannot bind it"
    elif port == result.wanted[0] and context.endpoint is None:
        level, why = Level.WARNING, "it is the default port of launchers"
    else:
        level, why = Level.NOTE, "a job that uses this port fails"
    if not holder.listens and level is Level.ERROR:
        level = Level.WARNING
    find = automatic("Find the process that holds it.", f"ss -tanp 'sport = :{port}'")
    message = f"port {port} is {describe_holder(holder)}: {why}"
    return _port_finding(result, level, message, 0.9, find)


def _is_reserved(port: int, reserved: str) -> bool:
    """``reserved`` has the kernel's format: ``29500-29510,30000``."""
    ranges = (part.split("-") for part in reserved.split(",") if part)
    return any(int(ends[0]) <= port <= int(ends[-1]) for ends in ranges)


def _port_finding(
    result: PortsResult, level: Level, message: str, confidence: float, first: Remedy
) -> Finding:
    return make_finding(
        PORT_IN_USE,
        message,
        level=level,
        evidence=result.facts(),
        confidence=confidence,
        remedies=(first, *PORT_IN_USE.remedies[1:]),
    )
