"""Rendezvous and connections between ranks: which endpoint could not be reached."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from holdfast.causes.network.firewall_blocked_ports import FIREWALL_BLOCKED_PORTS
from holdfast.causes.network.host_never_arrived import HOST_NEVER_ARRIVED
from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.causes.network.stale_rendezvous_store import STALE_RENDEZVOUS_STORE
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.sync.new_group_by_some_ranks import NEW_GROUP_BY_SOME_RANKS
from holdfast.causes.sync.store_wait import STORE_WAIT
from holdfast.diagnose.log_rules.candidates import CauseCandidate, candidate_of
from holdfast.diagnose.log_rules.log_index import LogIndex, comes_after, position
from holdfast.diagnose.log_rules.rank_inference import find_absent_rank
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier
from holdfast.diagnose.logs import LoggedSignal

#: Confidence of failed operations on hosts that talk to a host whose port failed.
_OF_FOLLOWERS = 0.5
_LOOPBACK = re.compile(r"\(?(?:localhost|127\.\d+\.\d+\.\d+|::1)\b")
_CONNECT_ERROR = re.compile(r"refused|[Tt]imed? ?out|Timeout|reset by peer|[Ff]ailed to connect")
_STORE_TIMEOUT = re.compile(r"DistStoreError|[Tt]imed out|wait timeout|Socket Timeout")
_LAUNCHER_FILE = re.compile(r"distributed/(?:launcher/api|rendezvous|elastic/rendezvous/\w+)\.py$")
_RENDEZVOUS_SIGNALS = (
    "store-unreachable",
    "clients-joined",
    "rendezvous-timeout",
    "store-key-timeout",
)
_PEER_SIGNALS = tuple(
    """
    ib-completion ofi-completion ib-verb ib-event adapter-port adapter-link-down no-interface
    docker-interface no-route no-network connect-timed-out connect-refused gloo-connect
    nccl-system-error nccl-cuda-error nccl-internal-error store-lost peer-closed
    """.split()
)
#: A connection to an address where nothing listens any more.
_TO_OLD_ADDRESSES = ("gloo-connect", "connect-refused", "no-interface")
_REFUSED = re.compile(r"refused|Software caused connection abort")
#: A port reports a fault of its host; failed operations follow on every host that talks to it.
_PORT_SIGNALS = ("ib-event", "adapter-port", "adapter-link-down")
_COMPLETION_SIGNALS = frozenset({"ib-completion", "ofi-completion", "ib-verb"})
#: EFA: the peer answered before, and does so no more.
_WAS_RESPONSIVE = re.compile(r"\((?:connection previously established|was previously responsive)\)")
#: Without faults of ports or operations, a connection to one port fails because of a firewall or
#: the choice of the interface, not because of the fabric.
_CONNECT_SIGNALS = frozenset({"no-route", "no-network", "connect-timed-out", "connect-refused"})
#: NCCL's summary of any error: an echo if another line reports the lost peer.
_NCCL_SUMMARIES = frozenset({"nccl-system-error", "nccl-internal-error"})
#: A peer's address of the host itself, or of a bridge to containers.
_OWN_ADDRESS = re.compile(
    r"(?:127\.\d+\.\d+\.\d+|::1\b|\b172\.17\.0\.\d+|\b192\.168\.122\.\d+|localhost)"
)
#: Without a failure of a connection, the name of an interface is no fault, and a link that goes
#: down is being set up.
_HARMLESS_ALONE = frozenset({"docker-interface", "adapter-link-down"})
_CONNECTION_FAILURES = (
    "ib-completion",
    "ofi-completion",
    "peer-closed",
    "nccl-system-error",
    "connect-timed-out",
    "connect-refused",
    "no-route",
    "no-network",
    "watchdog-timeout",
    "gloo-connect",
)


def _is_closed_by_failure(index: LogIndex, one: LoggedSignal) -> bool:
    """Return whether a rendezvous was closed because ranks had failed before."""
    earlier = index.all("peer-closed", "exit-code")
    return "RendezvousClosed" in one.line.text and any(comes_after(one, each) for each in earlier)


def find_rendezvous_faults(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield faults of the store: connections to it are dropped, or it is not running."""
    joined, lost = index.first("clients-joined"), index.first("store-unreachable")
    if (
        joined is not None
        and lost is not None
        and "port" in lost.fields
        and not _LOOPBACK.search(lost.line.text)
    ):
        message = (
            f"the master is running ({joined.fields['joined']} of {joined.fields['wanted']} ranks "
            f"joined), but connections to its port {lost.fields['port']} time out instead of being "
            "refused: packets are being dropped, probably by a firewall"
        )
        cause, lines = FIREWALL_BLOCKED_PORTS.name, (lost.line, joined.line)
        yield CauseCandidate(cause, Tier.NETWORK, 0.85, message, lines)
    yield from _find_missing_client(index)
    yield from _find_incomplete_group(index)
    # A rank, not the store, is missing where the unique ID is requested.
    requests = {position(signal) for signal in index.all("unique-id")}
    for name in _RENDEZVOUS_SIGNALS:
        signals = [
            one
            for one in index.unrecovered(name)
            if position(one) not in requests and not _is_closed_by_failure(index, one)
        ]
        if signals and name == "clients-joined" and _is_store_reachable(index, signals[0]):
            wanted, came = signals[0].fields["wanted"], signals[0].fields["joined"]
            message = f"{came} of {wanted} ranks joined the store, and the others did not"
            found = candidate_of(index, SIGNAL_CAUSES[name], signals)
            yield replace(found, cause=HOST_NEVER_ARRIVED.name, message=message)
        elif signals:
            yield candidate_of(index, SIGNAL_CAUSES[name], signals)


def _is_store_reachable(index: LogIndex, joined: LoggedSignal) -> bool:
    """Return whether others than the rank with the store joined it, and none reports an error."""
    return int(joined.fields["joined"]) > 1 and "store-unreachable" not in index


def _find_missing_client(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the rank that did not join a store that is running."""
    joined, waits = index.first("clients-joined"), index.first("store-key-timeout")
    if joined is None or waits is None or "store-unreachable" in index:
        return
    absent = find_absent_rank(index, index.facts.ranks.keys())
    missing = f"rank {absent}" if absent is not None else "the others"
    message = (
        f"{joined.fields['joined']} of {joined.fields['wanted']} ranks joined the store and timed "
        f"out waiting for {missing}"
    )
    lines = (joined.line, waits.line)
    yield CauseCandidate(STORE_WAIT.name, Tier.NETWORK, 0.7, message, lines, absent)


def _find_incomplete_group(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a wait in the store inside new_group, on ranks that had created the first group."""
    for one in index.facts.tracebacks:
        in_new_group = any(frame.function == "new_group" for frame in one.frames)
        refused = _REFUSED.search(one.text)  # the other rank came, but cannot be reached
        if in_new_group and not refused and _STORE_TIMEOUT.search(f"{one.type}: {one.text}"):
            message = "new_group timed out in the store: other ranks did not call it"
            yield CauseCandidate(
                NEW_GROUP_BY_SOME_RANKS.name, Tier.NETWORK, 0.8, message, (one.line,)
            )
            return


def find_missing_pods(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a pod that was not started; after steps, such events are about other pods."""
    signals = index.unrecovered("pod-not-started")
    if signals and not any(comes_after(signals[0], step) for step in index.all("progress", "pace")):
        yield candidate_of(index, SIGNAL_CAUSES["pod-not-started"], signals)


def find_unreachable_store(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a store that a launcher, or a rank creating its first process group, cannot reach."""
    for one in index.facts.tracebacks:
        in_launcher = any(_LAUNCHER_FILE.search(frame.file) for frame in one.frames)
        if in_launcher and _CONNECT_ERROR.search(one.text):
            message = "the rendezvous store did not respond"
            cause, rank = MASTER_UNREACHABLE.name, one.line.rank
            yield CauseCandidate(cause, Tier.NETWORK, 0.6, message, (one.line,), rank)
            return


def find_peer_faults(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield failed connections between ranks."""
    for name in _PEER_SIGNALS:
        signals = index.unrecovered(name)
        if not signals:
            continue
        if name in _TO_OLD_ADDRESSES and (stale := _find_stale_addresses(index, signals[0])):
            yield stale
            continue
        if name == "peer-closed" and closed_after_timeout(index):
            continue
        if name in _NCCL_SUMMARIES and "peer-closed" in index:
            continue
        if name not in _HARMLESS_ALONE or index.has_any(*_CONNECTION_FAILURES):
            yield _weigh_network(index, name, candidate_of(index, SIGNAL_CAUSES[name], signals))


def _weigh_network(index: LogIndex, name: str, found: CauseCandidate) -> CauseCandidate:
    """Return the candidate with the cause and confidence that the other lines leave it."""
    has_port_fault = index.has_any(*_PORT_SIGNALS)
    if any(_WAS_RESPONSIVE.search(line.text) for line in found.lines):
        message = f"{found.message}: the peer, which answered before, does so no more"
        return replace(found, cause=PEER_LOST.name, tier=Tier.LOST, message=message)
    if name in _COMPLETION_SIGNALS and has_port_fault:
        # The host with the port's events is to blame, not the one that complains.
        return replace(found, confidence=min(found.confidence, _OF_FOLLOWERS))
    if name not in _CONNECT_SIGNALS:
        return found
    if has_port_fault or index.has_any(*_COMPLETION_SIGNALS):
        return replace(found, cause=NETWORK_FABRIC_FAULT.name)
    if any(_OWN_ADDRESS.search(line.text) for line in found.lines):
        message = f"{found.message}; the peer announced an address of its own host"
        return replace(found, cause=NETWORK_INTERFACE_WRONG.name, message=message)
    return _weigh_lost_route(name, found) if _is_after_steps(index, found) else found


def _weigh_lost_route(name: str, found: CauseCandidate) -> CauseCandidate:
    """Return the candidate with the cause for a peer with which steps had been made."""
    message = f"{found.message}, to which it was connected before"
    if name == "connect-refused":
        return replace(found, cause=PEER_LOST.name, message=f"{message}: the peer is gone")
    return replace(found, cause=NETWORK_FABRIC_FAULT.name, message=message)


def _is_after_steps(index: LogIndex, found: CauseCandidate) -> bool:
    """Return whether the ranks had made steps together in this log before."""
    return any(
        step.line.source == line.source and step.line.number < line.number
        for line in found.lines[:1]
        for step in index.all("progress", "pace")
    )


def _find_stale_addresses(index: LogIndex, signal: LoggedSignal) -> CauseCandidate | None:
    """Return stale addresses in the store, which ranks of the previous attempt left there."""
    failed = [
        one for one in index.all("exit-code", "workers-restarted") if comes_after(signal, one)
    ]
    if not failed or not _REFUSED.search(signal.line.text):
        return None
    message = (
        "after a restart, connections between ranks were refused: the store may still contain the "
        "addresses of the previous attempt"
    )
    lines = (failed[0].line, signal.line)
    return CauseCandidate(STALE_RENDEZVOUS_STORE.name, Tier.NETWORK, 0.7, message, lines)


def closed_after_timeout(index: LogIndex) -> bool:
    """Return whether ranks closed their connections because they timed out; none was killed."""
    killed = index.has_any("killed", "segfault", "oom-killer", "aborted")
    return "gloo-timeout" in index and not killed
