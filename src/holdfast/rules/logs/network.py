"""Who could not reach whom: the rendezvous, and the connections between ranks."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import MEANINGS, Tier
from holdfast.rules.logs.plain import candidate, overcome

_RENDEZVOUS = ("store-unreachable", "clients-joined", "rendezvous-timeout", "store-key-timeout")
_PEERS = (
    "ib-completion", "ib-verb", "ib-event", "no-interface", "docker-interface", "no-route", "connect-timed-out",
    "connect-refused", "gloo-connect", "nccl-system-error", "nccl-cuda-error", "nccl-internal-error",
    "store-lost", "peer-closed",
)  # fmt: skip


def rendezvous(heard: Heard) -> Iterable[Candidate]:
    """The store: the master waits for clients that time out on their way to it (blocked), or it is not there."""
    joined, lost = heard.first("clients-joined"), heard.first("store-unreachable")
    if joined is not None and lost is not None and "port" in lost.fields:
        message = (
            f"the master is up ({joined.fields['joined']} of {joined.fields['wanted']} joined), and connections to "
            f"port {lost.fields['port']} time out instead of being refused: something on the way drops them"
        )
        yield Candidate("firewall-blocked-ports", Tier.NETWORK, 0.85, message, (lost.line, joined.line))
    for name in _RENDEZVOUS:
        signals = [signal for signal in heard.all(name) if not overcome(heard, signal)]
        if signals:
            yield candidate(heard, MEANINGS[name], signals)


def peers(heard: Heard) -> Iterable[Candidate]:
    """Connections between ranks."""
    for name in _PEERS:
        signals = [signal for signal in heard.all(name) if not overcome(heard, signal)]
        if signals and not (name == "docker-interface" and not _trouble(heard)):
            yield candidate(heard, MEANINGS[name], signals)


def _trouble(heard: Heard) -> bool:
    """A name of an interface alone is no fault."""
    return any(name in heard for name in ("nccl-system-error", "connect-timed-out", "connect-refused", "no-route",
                                          "watchdog-timeout", "gloo-connect"))  # fmt: skip
