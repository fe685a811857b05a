"""Judges whether this host's firewall admits the other hosts, by evaluating its rules.

The evaluated packet is the first of a TCP connection from a host of the same network (or of the
endpoint) to a port. A rule that was only partly parsed may match: then the outcome is not certain,
and is reported as a note.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network

import msgspec

from holdfast.causes.network.firewall_blocked_ports import FIREWALL_BLOCKED_PORTS
from holdfast.causes.remedies import by_hand
from holdfast.core.findings import Finding, Level, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.firewall import FirewallResult
from holdfast.host.netfilter import FirewallChain, FirewallRule

_MAX_DEPTH = 16
_REFUSING = frozenset({"drop", "reject"})
_JUMPS = frozenset({"jump", "goto"})


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """The first packet of a TCP connection with ``peers`` via ``interface`` to one of ``ports``."""

    peers: IPv4Network | IPv6Network
    interface: str
    ports: tuple[int, int]
    hook: str = "input"


class PacketOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a packet, the rule or policy that decides it, and whether it is certain."""

    verdict: str
    decided_by: str
    certain: bool = True


def judge(result: FirewallResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the rendezvous port and the ports on which gloo and NCCL listen, in both directions."""
    if isinstance(result.chains, Unknown):
        if result.ufw_policy in _REFUSING:
            message = (
                f"ufw is active and {result.ufw_policy}s connections by default; its rules could "
                f"not be read"
            )
            yield _firewall_finding(result, Level.WARNING, message, 0.5)
        return
    outcomes = [
        (packet, evaluate_packet(result.chains, packet)) for packet in _job_packets(result, context)
    ]
    for hook in ("input", "output"):
        refused = [
            (packet, outcome)
            for packet, outcome in outcomes
            if packet.hook == hook and outcome.verdict in _REFUSING
        ]
        if refused:
            yield _refusal_finding(result, refused)


def _job_packets(result: FirewallResult, context: CheckContext) -> Iterator[Packet]:
    """Yield packets to the rendezvous and ephemeral ports, in and out, for each network."""
    rendezvous = context.endpoint[1] if context.endpoint is not None else context.ports[0]
    remote = [ip_network(text.partition("%")[0]) for text in result.endpoint]
    for name, text in result.networks:
        own = ip_interface(text)
        peers = next((network for network in remote if network.version == own.version), own.network)
        if remote and all(network.version != own.version for network in remote):
            continue
        ephemeral = (result.ephemeral,) if result.ephemeral else ()
        for ports in ((rendezvous, rendezvous), *ephemeral):
            yield Packet(peers=peers, interface=name, ports=ports)
            yield Packet(peers=peers, interface=name, ports=ports, hook="output")


def _refusal_finding(
    result: FirewallResult, refused: Sequence[tuple[Packet, PacketOutcome]]
) -> Finding:
    """Return one finding for all refused packets of one direction, the certain ones first."""
    packet, outcome = next((pair for pair in refused if pair[1].certain), refused[0])
    ports = dict.fromkeys(
        _describe_ports(other.ports)
        for other, its_outcome in refused
        if its_outcome.certain is outcome.certain
    )
    direction = "from" if packet.hook == "input" else "to"
    verb = f"{outcome.verdict}s" if outcome.certain else f"may {outcome.verdict}"
    message = (
        f"this host's firewall {verb} connections {direction} other hosts on {packet.interface}, "
        f"to {' and '.join(ports)}, by {outcome.decided_by}"
    )
    if not outcome.certain:
        return _firewall_finding(result, Level.NOTE, message, 0.4, packet)
    level = Level.ERROR if result.endpoint else Level.WARNING
    message += ": ranks on different hosts cannot communicate"
    return _firewall_finding(result, level, message, 0.9, packet)


def _describe_ports(ports: tuple[int, int]) -> str:
    return f"port {ports[0]}" if ports[0] == ports[1] else f"ports {ports[0]}-{ports[1]}"


def evaluate_packet(chains: Sequence[FirewallChain], packet: Packet) -> PacketOutcome:
    """Pass the packet through all chains of its hook in priority order: any refusal is final."""
    families = {"inet", "ip" if packet.peers.version == 4 else "ip6"}
    hooked = [chain for chain in chains if chain.hook == packet.hook and chain.family in families]
    doubtful = None
    for chain in sorted(hooked, key=lambda chain: chain.priority):
        outcome = _traverse_chain(chain, packet, _chains_of_table(chains, chain), 0)
        outcome = outcome or PacketOutcome(verdict=chain.policy, decided_by=_policy_of(chain))
        if outcome.verdict in _REFUSING and outcome.certain:
            return outcome if doubtful is None else _as_uncertain(outcome)
        if outcome.verdict in _REFUSING:
            doubtful = doubtful or outcome
    return doubtful or PacketOutcome(verdict="accept", decided_by="no rule against it")


def _policy_of(chain: FirewallChain) -> str:
    return f"the policy of chain {chain.name}"


def _as_uncertain(outcome: PacketOutcome) -> PacketOutcome:
    return msgspec.structs.replace(outcome, certain=False)


def _chains_of_table(
    chains: Sequence[FirewallChain], member: FirewallChain
) -> Mapping[str, FirewallChain]:
    return {
        chain.name: chain
        for chain in chains
        if (chain.family, chain.table) == (member.family, member.table)
    }


def _traverse_chain(
    chain: FirewallChain, packet: Packet, others: Mapping[str, FirewallChain], depth: int
) -> PacketOutcome | None:
    """Return the first certain verdict, uncertain if a doubtful rule before it disagrees.

    None at the end.
    """
    doubtful: list[PacketOutcome] = []
    for rule in chain.rules if depth < _MAX_DEPTH else ():
        matches = rule_matches(rule, packet)
        if matches is False or not rule.verdict:
            continue
        outcome: PacketOutcome | None = PacketOutcome(
            verdict=rule.verdict, decided_by=f"the rule `{rule.text}`"
        )
        if rule.verdict in _JUMPS:
            target = others.get(rule.target)
            outcome = _traverse_chain(target, packet, others, depth + 1) if target else None
        if matches and (rule.verdict == "return" or (rule.verdict == "goto" and outcome is None)):
            break
        if outcome is None or outcome.verdict == "return":
            continue
        if matches and outcome.certain:
            agrees = all(other.verdict == outcome.verdict for other in doubtful)
            return outcome if agrees else _as_uncertain(outcome)
        doubtful.append(_as_uncertain(outcome))
    if not doubtful:
        return None
    refusing = [outcome for outcome in doubtful if outcome.verdict in _REFUSING]
    if not refusing:
        return PacketOutcome(verdict=chain.policy, decided_by=_policy_of(chain), certain=False)
    if chain.hook and chain.policy == "drop" and refusing == doubtful:
        return PacketOutcome(verdict="drop", decided_by=_policy_of(chain))
    return refusing[0]


def rule_matches(rule: FirewallRule, packet: Packet) -> bool | None:
    """Return whether the rule matches the packet; None if it may."""
    incoming = packet.hook == "input"
    peers, own = (
        (rule.sources, rule.destinations) if incoming else (rule.destinations, rule.sources)
    )
    interfaces, others = (
        (rule.in_interfaces, rule.out_interfaces)
        if incoming
        else (rule.out_interfaces, rule.in_interfaces)
    )
    conditions = [
        rule.matches_new,
        _matches_any(rule.protocols, lambda name: name.lower() in {"tcp", "6", "all"}),
        _matches_any(interfaces, lambda name: fnmatch.fnmatchcase(packet.interface, name)),
        _matches_ports(rule.ports, packet.ports),
        _matches_networks(peers, packet.peers),
        None if own or others else True,
        True if rule.certain else None,
    ]
    return False if False in conditions else None if None in conditions else True


def _matches_any(values: Sequence[str], matches: Callable[[str], bool]) -> bool:
    """Return whether one of the values matches, or with a ``!`` before them none.

    True without values.
    """
    if not values:
        return True
    matched = any(matches(value.lstrip("!")) for value in values)
    return matched is not values[0].startswith("!")


def _matches_ports(ranges: Sequence[tuple[int, int]], wanted: tuple[int, int]) -> bool | None:
    if not ranges or any(first <= wanted[0] and wanted[1] <= last for first, last in ranges):
        return True
    return (
        None if any(first <= wanted[1] and wanted[0] <= last for first, last in ranges) else False
    )


def _matches_networks(networks: Sequence[str], peers: IPv4Network | IPv6Network) -> bool | None:
    """Return whether the peers are in one of the networks, or outside all that have a ``!``.

    None if some may be.
    """
    if not networks:
        return True
    answers: list[bool | None] = []
    for text in networks:
        try:
            network = ip_network(text.lstrip("!"), strict=False)
        except ValueError:  # the name of an address set
            answers.append(None)
            continue
        if network.version == peers.version:
            inside = network.supernet_of(peers)  # type: ignore[arg-type]  # their versions are the same
            answers.append(True if inside else None if network.overlaps(peers) else False)
    if not answers:
        return False  # a rule for the other IP version never matches, negated or not
    answer = True if True in answers else None if None in answers else False
    return answer if answer is None else answer is not networks[0].startswith("!")


def _firewall_finding(
    result: FirewallResult,
    level: Level,
    message: str,
    confidence: float,
    packet: Packet | None = None,
) -> Finding:
    network = packet.peers if packet is not None else "NETWORK/PREFIX"
    command = {
        "ufw": f"ufw allow from {network}",
        "firewalld": f"firewall-cmd --permanent --zone=trusted --add-source={network} && "
        "firewall-cmd --reload",
    }.get(result.manager or ("ufw" if result.ufw_policy else ""), "nft -a list ruleset")
    text = "Allow all ports for the other hosts of this network (only that network)."
    if command.startswith("nft"):
        text = (
            "List the rules with their handles, and allow the other hosts before the refusing rule."
        )
    return make_finding(
        FIREWALL_BLOCKED_PORTS,
        message,
        level=level,
        evidence=result.facts(),
        confidence=confidence,
        remedies=(by_hand(text, command), *FIREWALL_BLOCKED_PORTS.remedies),
    )
