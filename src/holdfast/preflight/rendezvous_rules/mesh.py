"""Pairs of hosts that cannot communicate, why, and the host or link responsible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from holdfast.causes.network.firewall_blocked_ports import FIREWALL_BLOCKED_PORTS
from holdfast.causes.network.hostname_resolution import HOSTNAME_RESOLUTION
from holdfast.causes.network.mtu_black_hole import MTU_BLACK_HOLE
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.core.findings import Cause, Fact, Finding, Level, Subject, Unknown, make_finding
from holdfast.core.rank_sets import compress_ranks
from holdfast.preflight.rendezvous import (
    ConnectOutcome,
    EndpointLookup,
    Observations,
    Participant,
    Peer,
    ProbeResult,
)
from holdfast.preflight.rendezvous_rules.blame import Suspect, find_suspects

#: Outcome -> cause, confidence, and the sentence.
_SENTENCES: dict[ConnectOutcome, tuple[Cause, float, str]] = {
    ConnectOutcome.TIMED_OUT: (
        FIREWALL_BLOCKED_PORTS,
        0.95,
        "a firewall drops packets {path}, although a process listens there",
    ),
    ConnectOutcome.REJECTED: (
        FIREWALL_BLOCKED_PORTS,
        0.97,
        "a firewall rejects connections {path}{by}",
    ),
    ConnectOutcome.REFUSED: (
        FIREWALL_BLOCKED_PORTS,
        0.9,
        "connections {path} are refused, although a process listens there: a firewall resets them",
    ),
    ConnectOutcome.NO_ROUTE: (
        NETWORK_INTERFACE_WRONG,
        0.95,
        "there is no route for packets {path}",
    ),
    ConnectOutcome.NO_HOST: (
        NETWORK_FABRIC_FAULT,
        0.85,
        "no host answers at the destination address of packets {path}",
    ),
    ConnectOutcome.FOREIGN_SERVICE: (
        NETWORK_INTERFACE_WRONG,
        0.9,
        "another service or host answers connections {path}: {detail}",
    ),
    ConnectOutcome.STALLED: (
        MTU_BLACK_HOLE,
        0.96,
        (
            "small messages {path} arrive and large ones are lost ({detail}): the path drops "
            "packets of that size without an ICMP error"
        ),
    ),
    ConnectOutcome.FAILED: (NETWORK_FABRIC_FAULT, 0.7, "connections {path} break: {detail}"),
}
_MAX_FACTS = 16


def judge(observed: Observations) -> Iterator[Finding]:
    """Yield faults of data ports, then of published addresses, the port range, and host names."""
    failed: dict[str, list[ProbeResult]] = defaultdict(list)
    for result in observed.failed_probes:
        failed[result.purpose].append(result)
    data = failed.pop("data", [])
    by_outcome: dict[ConnectOutcome, list[ProbeResult]] = defaultdict(list)
    for result in data:
        by_outcome[result.attempt.outcome].append(result)
    for outcome, results in by_outcome.items():
        by_pair = {(result.source, result.target): result for result in results}
        for suspect in find_suspects(by_pair, len(observed.participants)):
            yield _suspect_finding(
                outcome, suspect, [by_pair[pair] for pair in suspect.pairs], observed
            )
    broken = {(result.source, result.target) for result in data}

    def without_broken(results: list[ProbeResult]) -> list[ProbeResult]:
        return [result for result in results if (result.source, result.target) not in broken]

    in_range = failed.pop("range", [])
    for library, results in failed.items():
        yield from _published(library, without_broken(results), observed)
    yield from _port_range(without_broken(in_range), observed)
    yield from _names(observed)


def widespread_hosts(observed: Observations) -> set[int]:
    """Return the hosts of failing pairs for which no single host or link is responsible."""
    by_outcome: dict[ConnectOutcome, list[tuple[int, int]]] = defaultdict(list)
    for result in observed.failed_probes:
        if result.purpose == "data":
            by_outcome[result.attempt.outcome].append((result.source, result.target))
    for link in observed.links:
        if link.outcome is not ConnectOutcome.OPEN:
            by_outcome[link.outcome].append((link.source, link.target))
    suspects = (
        suspect
        for pairs in by_outcome.values()
        for suspect in find_suspects(pairs, len(observed.participants))
        if suspect.widespread
    )
    return {host for suspect in suspects for pair in suspect.pairs for host in pair}


def _suspect_finding(
    outcome: ConnectOutcome, suspect: Suspect, results: list[ProbeResult], observed: Observations
) -> Finding:
    cause, confidence, sentence = _SENTENCES[outcome]
    attempt = results[0].attempt
    by = f" (the ICMP error comes from {attempt.by})" if attempt.by else ""
    path = _describe_path(suspect, results, observed)
    return make_finding(
        cause,
        sentence.format(path=path, by=by, detail=attempt.detail),
        subject=_subject(suspect, results, observed),
        evidence=tuple(_fact(result, observed) for result in results[:_MAX_FACTS]),
        confidence=confidence,
    )


def _describe_path(suspect: Suspect, results: list[ProbeResult], observed: Observations) -> str:
    """Return ``from a to b`` for one link, all links of a host, or many links."""
    if suspect.widespread:
        size = len(observed.participants)
        hosts = suspect.host_count
        who = f"all {size:,}" if hosts == size else f"{hosts:,} of {size:,}"
        return f"between {who} hosts ({len(suspect.pairs):,} directed pairs)"
    if suspect.host is None:
        source, target = suspect.pairs[0]
        names = {at: observed.participants[at].peer.label for at in (source, target)}
        ports = compress_ranks(
            sorted({result.attempt.port for result in results if result.target == target})
        )
        if len(suspect.pairs) > 1:
            return f"between {names[source]} and {names[target]}, in both directions,"
        return f"from {names[source]} to the data ports of {names[target]} (port {ports})"
    others = f"each of {suspect.host_count - 1} hosts"
    name = observed.participants[suspect.host].peer.label
    if suspect.inward and suspect.outward:
        return f"between {name} and {others}"
    return f"to {name} from {others}" if suspect.inward else f"from {name} to {others}"


def _subject(suspect: Suspect, results: list[ProbeResult], observed: Observations) -> Subject:
    if suspect.widespread:
        return Subject()
    if suspect.host is not None:
        return Subject(host=observed.participants[suspect.host].peer.host)
    ends = (results[0].source, results[0].target)
    return Subject(link=" -> ".join(observed.participants[at].peer.host for at in ends))


def _fact(result: ProbeResult, observed: Observations) -> Fact:
    attempt = result.attempt
    source, target = (observed.participants[at].peer.host for at in (result.source, result.target))
    detail = f" ({attempt.detail})" if attempt.detail else ""
    return Fact(
        text=f"{source} -> {target} at {attempt.address}:{attempt.port}: {attempt.outcome}{detail} "
        f"after {attempt.elapsed_s:.2f} s",
        origin="connect",
        host=source,
    )


def _published(
    library: str, results: list[ProbeResult], observed: Observations
) -> Iterator[Finding]:
    """Yield findings for hosts that are reachable, but not at the address the library publishes."""
    by_target: dict[int, list[ProbeResult]] = defaultdict(list)
    for result in results:
        by_target[result.target].append(result)
    for target, group in by_target.items():
        peer = observed.participants[target].peer
        if library == "NCCL" and not peer.devices:
            continue
        published = next((each for each in peer.published if each.library == library), None)
        if published is None:  # a purpose of another version of holdfast
            continue
        sources = _name_hosts([observed.participants[result.source] for result in group])
        yield make_finding(
            NETWORK_INTERFACE_WRONG,
            f"{library} on {peer.label} would publish {published.address} on {published.interface} "
            f"({published.why}), which {sources} cannot reach ({group[0].attempt.outcome})",
            subject=Subject(host=peer.host),
            confidence=0.95,
            evidence=tuple(_fact(result, observed) for result in group[:_MAX_FACTS]),
        )


def _port_range(results: list[ProbeResult], observed: Observations) -> Iterator[Finding]:
    by_outcome: dict[tuple[int, ConnectOutcome], list[ProbeResult]] = defaultdict(list)
    for result in results:
        by_outcome[result.target, result.attempt.outcome].append(result)
    for (target, outcome), group in by_outcome.items():
        ports = compress_ranks(sorted({result.attempt.port for result in group}))
        sources = {result.source: observed.participants[result.source] for result in group}
        peer = observed.participants[target].peer
        yield make_finding(
            FIREWALL_BLOCKED_PORTS,
            f"ports {ports} of {peer.label} are blocked from {_name_hosts(list(sources.values()))} "
            f"({outcome}), although a process listens there: a job that uses one of them as its "
            "master port would hang",
            level=Level.WARNING,
            subject=Subject(host=peer.host),
            confidence=0.8,
            evidence=tuple(_fact(result, observed) for result in group[:_MAX_FACTS]),
        )


def _names(observed: Observations) -> Iterator[Finding]:
    """Yield hosts whose full name, which torchrun's c10d publishes, does not lead to them."""
    wrong: dict[int, list[EndpointLookup]] = defaultdict(list)
    for lookup in observed.lookups:
        target = observed.participants[lookup.target].peer
        source = observed.participants[lookup.source].peer
        own = {interface.address for interface in target.interfaces}
        if target.machine != source.machine and (
            isinstance(lookup.addresses, Unknown) or not own & set(lookup.addresses)
        ):
            wrong[lookup.target].append(lookup)
    shared: set[str] = set()
    for number, lookups in wrong.items():
        peer = observed.participants[number].peer
        sources = _name_hosts([observed.participants[lookup.source] for lookup in lookups])
        name, namesakes = lookups[0].name, _namesakes(observed, lookups[0].name)
        what = f"the name of {peer.label}, {name}, {_describe_lookup(lookups[0])} on {sources}"
        if len(namesakes) > 1:
            if name in shared:
                continue
            shared.add(name)
            what = f"{len(namesakes)} hosts have the same name, {name}, which leads to only one"
        yield make_finding(
            HOSTNAME_RESOLUTION,
            f"{what}: torchrun's c10d rendezvous publishes that name, and its job does not start "
            "without --local-addr ADDRESS (holdfast run publishes the address)",
            level=Level.WARNING,
            subject=Subject(host=peer.host),
            confidence=0.8,
            evidence=tuple(
                Fact(
                    text=f"{lookup.name} {_describe_lookup(lookup)}",
                    origin="getaddrinfo",
                    host=observed.participants[lookup.source].peer.host,
                )
                for lookup in lookups[:_MAX_FACTS]
            ),
        )


def _namesakes(observed: Observations, name: str) -> list[Peer]:
    """Return the first peer on each machine with this full name."""
    peers = {each.peer.machine: each.peer for each in reversed(observed.participants)}
    return [each for each in reversed(peers.values()) if each.name == name]


def _describe_lookup(lookup: EndpointLookup) -> str:
    if isinstance(lookup.addresses, Unknown):
        return f"does not resolve ({lookup.addresses.why})"
    return f"resolves to {', '.join(lookup.addresses)}"


def _name_hosts(participants: list[Participant]) -> str:
    named = ", ".join(each.peer.host for each in participants[:4])
    return named + (f" and {len(participants) - 4} more" if len(participants) > 4 else "")
