"""Whether each host publishes an address at which its peers can reach it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.core.findings import Fact, Finding, Level, Subject, Unknown, make_finding
from holdfast.preflight.rendezvous import Observations, Participant, PublishedAddress
from holdfast.preflight.rendezvous.addresses import is_loopback


def judge(observed: Observations) -> Iterator[Finding]:
    """Yield findings for interfaces that are not up, and for loopback among several machines.

    On hosts with GPUs, gloo's address is only a warning, because NCCL carries the training traffic.
    """
    several = len({each.peer.machine for each in observed.participants}) > 1
    for participant in observed.participants:
        for published in participant.peer.published:
            if (
                published.library == "NCCL"
                and not participant.peer.devices
                and not isinstance(published.address, Unknown)
            ):
                continue
            message = _problem(participant, published, several=several)
            if message:
                yield _finding(participant, published, message)


def _problem(participant: Participant, published: PublishedAddress, *, several: bool) -> str:
    label = participant.peer.label
    if isinstance(published.address, Unknown):
        unused = published.library == "NCCL" and not participant.peer.devices
        if unused:
            return ""
        return f"{published.library} on {label} has no address to publish: {published.address.why}"
    if several and is_loopback(published.address):
        return (
            f"{published.library} on {label} would publish {published.address} ({published.why}), "
            "which every other host resolves to itself"
        )
    return ""


def _finding(participant: Participant, published: PublishedAddress, message: str) -> Finding:
    secondary = published.library == "gloo" and participant.peer.devices
    interfaces = ", ".join(f"{each.name} {each.address}" for each in participant.peer.interfaces)
    host = participant.peer.host
    return make_finding(
        NETWORK_INTERFACE_WRONG,
        message,
        level=Level.WARNING if secondary else Level.ERROR,
        subject=Subject(host=host),
        confidence=0.7 if secondary else 0.95,
        evidence=(Fact(text=f"interfaces up: {interfaces}", origin="getifaddrs", host=host),),
    )
