"""Are the rendezvous' ports free, and will they stay so?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.ports import Holder, Ports, said
from holdfast.findings import Finding, Level, Remedy, Safety, Unknown, finding
from holdfast.rules.causes import by_name

#: Fewer ports than this run out with many ranks: each keeps a connection to each other, and a closed one its port 60 s.
_FEW = 2000


def judge(seen: Ports, place: Place) -> Iterator[Finding]:
    """Taken: an error for the endpoint's own, a warning for the default, else a note. Then the kernel's own range."""
    if not isinstance(seen.held, Unknown):
        for port in sorted({each.port for each in seen.held}):
            yield _taken(seen, next(each for each in seen.held if each.port == port), place)
    if isinstance(seen.ephemeral, Unknown):
        return
    first, last = seen.ephemeral
    wanted = seen.endpoint if seen.endpoint is not None else seen.wanted[0]
    if first <= wanted <= last and not _within(wanted, seen.reserved):
        yield _claim(
            seen,
            Level.NOTE,
            f"port {wanted} is among those that the kernel gives to outgoing connections "
            f"({first}-{last}): now and then one will have it when the job starts",
            0.5,
            Remedy(
                text="Keep the ports of jobs out of the range.",
                command=f"sysctl -w net.ipv4.ip_local_reserved_ports={seen.wanted[0]}-{seen.wanted[1]}",
            ),
        )
    if last - first < _FEW:
        yield _claim(
            seen,
            Level.WARNING,
            f"only {last - first + 1} ports are left for connections ({first}-{last}): with many ranks they run out",
            0.6,
            Remedy(text="Widen the range.", command='sysctl -w net.ipv4.ip_local_port_range="32768 60999"'),
        )


def _taken(seen: Ports, holder: Holder, place: Place) -> Finding:
    port = holder.port
    if port == seen.endpoint:
        level, why = Level.ERROR, "the rendezvous of this job cannot begin there"
    elif port == seen.wanted[0] and place.endpoint is None:
        level, why = Level.WARNING, "it is the one that launchers take where none is named"
    else:
        level, why = Level.NOTE, "a job that is told this port will fail"
    if not holder.listens and level is Level.ERROR:
        level = Level.WARNING
    find = Remedy(text="Find who holds it.", command=f"ss -tanp 'sport = :{port}'", safety=Safety.AUTOMATIC)
    return _claim(seen, level, f"port {port} is {said(holder)}: {why}", 0.9, find)


def _within(port: int, reserved: str) -> bool:
    """``reserved`` is as the kernel writes it: ``29500-29510,30000``."""
    spans = (part.split("-") for part in reserved.split(",") if part)
    return any(int(span[0]) <= port <= int(span[-1]) for span in spans)


def _claim(seen: Ports, level: Level, message: str, confidence: float, first: Remedy) -> Finding:
    cause = by_name("port-in-use")
    return finding(
        cause, message, level=level, evidence=seen.facts(), confidence=confidence, remedies=(first, *cause.remedies[1:])
    )
