"""Who could not reach whom: the rendezvous, and the connections between ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.facts.logs import Signal
from holdfast.rules.logs.absent import absent
from holdfast.rules.logs.heard import Candidate, Heard, place
from holdfast.rules.logs.meanings import MEANINGS, Tier
from holdfast.rules.logs.plain import candidate, overcome

_LOOPBACK = re.compile(r"\(?(?:localhost|127\.\d+\.\d+\.\d+|::1)\b")
_UNHEARD = re.compile(r"refused|[Tt]imed? ?out|Timeout|reset by peer|[Ff]ailed to connect")
_LAUNCHER = re.compile(r"distributed/(?:launcher/api|rendezvous|elastic/rendezvous/\w+)\.py$")
_RENDEZVOUS = ("store-unreachable", "clients-joined", "rendezvous-timeout", "store-key-timeout")
_PEERS = (
    "ib-completion", "ib-verb", "ib-event", "no-interface", "docker-interface", "no-route", "connect-timed-out",
    "connect-refused", "gloo-connect", "nccl-system-error", "nccl-cuda-error", "nccl-internal-error",
    "store-lost", "peer-closed",
)  # fmt: skip


def rendezvous(heard: Heard) -> Iterable[Candidate]:
    """The store: the master waits for clients that time out on their way to it (blocked), or it is not there."""
    joined, lost = heard.first("clients-joined"), heard.first("store-unreachable")
    if joined is not None and lost is not None and "port" in lost.fields and not _LOOPBACK.search(lost.line.text):
        message = (
            f"the master is up ({joined.fields['joined']} of {joined.fields['wanted']} joined), and connections to "
            f"port {lost.fields['port']} time out instead of being refused: something on the way drops them"
        )
        yield Candidate("firewall-blocked-ports", Tier.NETWORK, 0.85, message, (lost.line, joined.line))
    yield from _missing(heard)
    asked = {place(signal) for signal in heard.all("unique-id")}  # there it is a rank that is waited for
    for name in _RENDEZVOUS:
        signals = [signal for signal in heard.all(name) if place(signal) not in asked and not overcome(heard, signal)]
        if signals:
            yield candidate(heard, MEANINGS[name], signals)


def _missing(heard: Heard) -> Iterable[Candidate]:
    """The store serves those who came and waits for one more."""
    joined, waits = heard.first("clients-joined"), heard.first("store-key-timeout")
    if joined is None or waits is None or "store-unreachable" in heard:
        return
    missed = absent(heard, heard.facts.ranks.keys())
    message = f"{joined.fields['joined']} of {joined.fields['wanted']} ranks came to the store and waited for the last"
    yield Candidate("store-wait", Tier.NETWORK, 0.7, message, (joined.line, waits.line), missed)


def unreached(heard: Heard) -> Iterable[Candidate]:
    """A store that did not answer a launcher, or a rank that made its first group."""
    for one in heard.facts.tracebacks:
        if _UNHEARD.search(one.text) and any(_LAUNCHER.search(frame.file) for frame in one.frames):
            message = "there was no answer from the rendezvous store"
            yield Candidate("master-unreachable", Tier.NETWORK, 0.6, message, (one.line,), one.line.rank)
            return


def peers(heard: Heard) -> Iterable[Candidate]:
    """Connections between ranks."""
    for name in _PEERS:
        signals = [signal for signal in heard.all(name) if not overcome(heard, signal)]
        if name == "gloo-connect" and signals and (stale := _stale(heard, signals[0])) is not None:
            yield stale
        if name == "peer-closed" and gave_up(heard):
            continue
        if signals and not (name == "docker-interface" and not _trouble(heard)):
            yield candidate(heard, MEANINGS[name], signals)


def _stale(heard: Heard, signal: Signal) -> Candidate | None:
    """After a restart the addresses of the ranks that are gone are still in the store."""
    failed = [one for one in heard.all("exit-code") if one.order < signal.order]
    if not failed or "refused" not in signal.line.text:
        return None
    message = "after a restart the ranks were refused at addresses, as are left in the store by the attempt before"
    return Candidate("stale-rendezvous-store", Tier.NETWORK, 0.6, message, (failed[0].line, signal.line))


def gave_up(heard: Heard) -> bool:
    """Ranks gave up waiting, which closed their connections; nobody was killed."""
    return "gloo-timeout" in heard and not any(
        name in heard for name in ("killed", "segfault", "oom-killer", "aborted")
    )


def _trouble(heard: Heard) -> bool:
    """A name of an interface alone is no fault."""
    return any(name in heard for name in ("nccl-system-error", "connect-timed-out", "connect-refused", "no-route",
                                          "watchdog-timeout", "gloo-connect"))  # fmt: skip
