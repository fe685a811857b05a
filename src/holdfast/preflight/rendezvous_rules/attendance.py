"""Which peers joined, which are missing or contradict each other, and who used a side port."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast.causes.network.firewall_blocked_ports import FIREWALL_BLOCKED_PORTS
from holdfast.causes.network.host_never_arrived import HOST_NEVER_ARRIVED
from holdfast.causes.network.launch_arguments_differ import LAUNCH_ARGUMENTS_DIFFER
from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.causes.network.port_in_use import PORT_IN_USE
from holdfast.core.findings import Fact, Finding, Level, Subject, Unknown, make_finding
from holdfast.core.rank_sets import compress_ranks
from holdfast.core.text import pluralize
from holdfast.preflight.rendezvous import ConnectOutcome, Observations, Participant, Peer
from holdfast.preflight.rendezvous.addresses import is_loopback
from holdfast.preflight.rendezvous_rules import routes

_MAX_NAMED = 16


def judge(observed: Observations) -> Iterator[Finding]:
    """Yield the reasons first, then the missing nodes."""
    peers = [each.peer for each in observed.participants]
    yield from _contradictions(peers)
    yield from _versions(peers)
    yield from _incompatible_peers(observed)
    leader = next((each for each in observed.participants if each.leads), None)
    if leader is None:
        return
    yield from _port_in_use(leader, observed)
    yield from _wrong_host(leader, observed)
    yield from _blocked_endpoint(leader, observed)
    yield from _missing(leader, observed)


def missing_nodes(observed: Observations) -> tuple[list[int], int]:
    """Return the missing node ranks, where ranks are known, and the number of missing nodes."""
    nodes = {each.peer.node for each in observed.participants}
    count = observed.nodes - len(observed.participants)
    if None in nodes or count <= 0:
        return [], max(count, 0)
    return [node for node in range(observed.nodes) if node not in nodes], count


def _missing(leader: Participant, observed: Observations) -> Iterator[Finding]:
    nodes, count = missing_nodes(observed)
    if not count:
        return
    names = leader.peer.names
    named = ", ".join(names[node] for node in nodes[:_MAX_NAMED] if node < len(names))
    who = (
        f"node {compress_ranks(nodes)}" + (f" ({named})" * bool(named))
        if nodes
        else pluralize(count, "node")
    )
    joined = ", ".join(each.peer.label for each in observed.participants[:_MAX_NAMED])
    yield make_finding(
        HOST_NEVER_ARRIVED,
        f"{who} of {observed.nodes} did not reach {leader.peer.endpoint} within "
        f"{observed.waited_s:.0f} s: not started, or its packets are lost",
        evidence=(
            Fact(text=f"joined: {joined}", origin="the rendezvous", host=leader.peer.host),
            *routes.access_facts(leader.peer, leader.access),
        ),
        confidence=0.9,
    )


def _contradictions(peers: list[Peer]) -> Iterator[Finding]:
    sizes = defaultdict(list)
    for peer in peers:
        sizes[peer.nodes].append(peer)
    facts = tuple(
        Fact(
            text=f"node {'?' if peer.node is None else peer.node} of {peer.nodes}, "
            f"endpoint {peer.endpoint}",
            origin="the command line",
            host=peer.host,
        )
        for peer in peers[:_MAX_NAMED]
    )
    if len(sizes) > 1:
        listed = "; ".join(f"{size} on {_hosts(group)}" for size, group in sorted(sizes.items()))
        yield make_finding(
            LAUNCH_ARGUMENTS_DIFFER,
            f"the hosts were started with different numbers of nodes: {listed}",
            evidence=facts,
            confidence=0.99,
        )
    counts = Counter(peer.node for peer in peers if peer.node is not None)
    for node, count in sorted(counts.items()):
        if count > 1:
            duplicates = [peer for peer in peers if peer.node == node]
            yield make_finding(
                LAUNCH_ARGUMENTS_DIFFER,
                f"node rank {node} is used {count} times: on {_hosts(duplicates)}",
                evidence=facts,
                confidence=0.99,
            )


def _hosts(peers: list[Peer]) -> str:
    named = ", ".join(peer.host for peer in peers[:_MAX_NAMED])
    return named + (f" and {len(peers) - _MAX_NAMED} more" if len(peers) > _MAX_NAMED else "")


def _versions(peers: list[Peer]) -> Iterator[Finding]:
    groups = defaultdict(list)
    for peer in peers:
        groups[peer.version].append(peer)
    if len(groups) > 1:
        listed = "; ".join(
            f"{version} on {_hosts(group)}" for version, group in sorted(groups.items())
        )
        yield make_finding(
            LAUNCH_ARGUMENTS_DIFFER,
            f"the hosts have different versions of holdfast: {listed}",
            level=Level.WARNING,
            confidence=0.99,
        )


def _incompatible_peers(observed: Observations) -> Iterator[Finding]:
    """Yield a finding for each peer that runs an incompatible version."""
    for each in observed.incompatible[:_MAX_NAMED]:
        leader = next(
            (other.peer for other in observed.participants if other.leads),
            observed.participants[0].peer,
        )
        yield make_finding(
            LAUNCH_ARGUMENTS_DIFFER,
            f"{each.label} has holdfast {each.version}, and the leader, {leader.label}, has "
            f"{leader.version}: these versions are incompatible",
            subject=Subject(host=each.host),
            confidence=0.95,
        )


def _port_in_use(leader: Participant, observed: Observations) -> Iterator[Finding]:
    access = leader.access
    if access.bound in ("", "listening"):
        return
    yield make_finding(
        PORT_IN_USE,
        f"port {access.port} of {leader.peer.label} is not available ({access.bound}): the "
        "rendezvous cannot listen there",
        subject=Subject(host=leader.peer.host),
        confidence=0.98,
        evidence=tuple(
            fact
            for each in observed.participants[:_MAX_NAMED]
            for fact in routes.access_facts(each.peer, each.access)
        ),
    )


def _wrong_host(leader: Participant, observed: Observations) -> Iterator[Finding]:
    """Yield a finding if the endpoint is not node 0's: loopback, another node's or no host's."""
    first = next((each for each in observed.participants if each.peer.node == 0), None)
    nodes, count = missing_nodes(observed)
    access = leader.access
    if (unresolved := routes.unresolved_endpoint(leader.peer, access)) is not None:
        yield unresolved
        return
    address = "" if isinstance(access.addresses, Unknown) else access.addresses[0]
    if count and is_loopback(address):
        yield routes.loopback_endpoint(leader.peer, access)
        return
    elsewhere = first is not None and first.peer.machine != leader.peer.machine
    if leader.peer.node not in (0, None) and access.owned and (elsewhere or 0 in nodes):
        owner = first.peer.label if first is not None else "node 0, which did not join"
        message = (
            f"the endpoint {leader.peer.endpoint} is an address of {leader.peer.label}, "
            f"not of {owner}"
        )
    elif leader.peer.node == 0 and not access.owned and (count or access.main is None):
        message = (
            f"the endpoint {leader.peer.endpoint} is not an address of {leader.peer.label}: "
            "no peer can find it there"
        )
        if access.main is not None and access.main.outcome is not ConnectOutcome.OPEN:
            message += f" ({address}: {access.main.outcome})"
    else:
        return
    yield make_finding(
        MASTER_UNREACHABLE,
        message,
        evidence=routes.access_facts(leader.peer, access),
        confidence=0.97,
    )


def _blocked_endpoint(leader: Participant, observed: Observations) -> Iterator[Finding]:
    """Yield a finding if peers reached only a side port, so the endpoint's port is blocked."""
    if leader.access.bound != "listening":
        return
    blocked = defaultdict(list)
    for each in observed.participants:
        main = each.access.main
        if (
            not each.leads
            and main is not None
            and main.outcome is not ConnectOutcome.OPEN
            and any(side.outcome is ConnectOutcome.OPEN for side in each.access.side)
        ):
            blocked[main.outcome].append(each)
    for outcome, group in blocked.items():
        effect = (
            "are dropped by a firewall"
            if outcome is ConnectOutcome.TIMED_OUT
            else f"are {_past_participle(outcome)}, probably by a firewall"
        )
        yield make_finding(
            FIREWALL_BLOCKED_PORTS,
            f"packets from {_hosts([each.peer for each in group])} to port {leader.access.port} of "
            f"{leader.peer.label} {effect}; node 0 listens there, and other ports of it are open",
            subject=Subject(host=leader.peer.host),
            confidence=0.98,
            evidence=tuple(
                fact
                for each in group[:_MAX_NAMED]
                for fact in routes.access_facts(each.peer, each.access)
            ),
        )


def _past_participle(outcome: ConnectOutcome) -> str:
    rejected = outcome in (ConnectOutcome.REJECTED, ConnectOutcome.REFUSED)
    return str(outcome) if rejected else f"lost ({outcome})"
