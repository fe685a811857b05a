"""Would this host's firewall let the other hosts in? Its rules are followed as the kernel follows them.

A packet is the first of a TCP connection from a host of the same network (or the endpoint's) to a port. A rule that is
understood in part only may match: then the answer is not sure, and is told as a note.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network

import msgspec

from holdfast.facts.checks import Place
from holdfast.facts.checks.firewall import Firewall
from holdfast.facts.netfilter import Chain, Rule
from holdfast.findings import Finding, Level, Remedy, Unknown, finding
from holdfast.rules.causes import by_name

_DEEPEST = 16
_REFUSES = frozenset({"drop", "reject"})
_GOING = frozenset({"jump", "goto"})


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """The first packet of a TCP connection: with a host of ``peers``, through ``interface``, to a port of ``ports``."""

    peers: IPv4Network | IPv6Network
    interface: str
    ports: tuple[int, int]
    hook: str = "input"


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of it, by which rule (or policy), and whether that is sure."""

    verdict: str
    by: str
    sure: bool = True


def judge(seen: Firewall, place: Place) -> Iterator[Finding]:
    """For the port of the rendezvous, and for those on which gloo and NCCL listen, in both directions."""
    if isinstance(seen.chains, Unknown):
        if seen.ufw_policy in _REFUSES:
            message = f"ufw is on and {seen.ufw_policy}s what its rules do not name; the rules are closed to us"
            yield _claim(seen, Level.WARNING, message, 0.5)
        return
    packets = list(_packets(seen, place))
    fates = [(packet, fate(seen.chains, packet)) for packet in packets]
    for hook in ("input", "output"):
        refused = [(packet, told) for packet, told in fates if packet.hook == hook and told.verdict in _REFUSES]
        if refused:
            yield _refused(seen, refused)


def _packets(seen: Firewall, place: Place) -> Iterator[Packet]:
    """To the rendezvous' port and to the ephemeral ones, in and out, over each network."""
    first = place.endpoint[1] if place.endpoint is not None else place.ports[0]
    elsewhere = [ip_network(text.partition("%")[0]) for text in seen.endpoint]
    for name, text in seen.networks:
        own = ip_interface(text)
        peers = next((network for network in elsewhere if network.version == own.version), own.network)
        if elsewhere and all(network.version != own.version for network in elsewhere):
            continue
        for ports in ((first, first), *((seen.ephemeral,) if seen.ephemeral else ())):
            yield Packet(peers=peers, interface=name, ports=ports)
            yield Packet(peers=peers, interface=name, ports=ports, hook="output")


def _refused(seen: Firewall, refused: Sequence[tuple[Packet, Fate]]) -> Finding:
    """One finding for all that is refused in one direction; the surest of them speaks."""
    packet, told = next(((packet, told) for packet, told in refused if told.sure), refused[0])
    spans = dict.fromkeys(_span(each.ports) for each, fate in refused if fate.sure is told.sure)
    where = "in from" if packet.hook == "input" else "out to"
    word = {"drop": "drops", "reject": "rejects"}[told.verdict]
    message = (
        f"this host's firewall {word if told.sure else f'may {told.verdict}'} connections {where} other hosts on "
        f"{packet.interface}, to {' and to '.join(spans)}, by {told.by}"
    )
    if not told.sure:
        return _claim(seen, Level.NOTE, message, 0.4, packet)
    level = Level.ERROR if seen.endpoint else Level.WARNING
    return _claim(seen, level, f"{message}: ranks on several hosts cannot talk", 0.9, packet)


def _span(ports: tuple[int, int]) -> str:
    return f"port {ports[0]}" if ports[0] == ports[1] else f"ports {ports[0]}-{ports[1]}"


def fate(chains: Sequence[Chain], packet: Packet) -> Fate:
    """Through all chains of the hook in the order of their priority: whoever refuses has the last word."""
    families = {"inet", "ip" if packet.peers.version == 4 else "ip6"}
    entered = [chain for chain in chains if chain.hook == packet.hook and chain.family in families]
    doubtful = None
    for chain in sorted(entered, key=lambda chain: chain.priority):
        told = _through(chain, packet, _by_name(chains, chain), 0)
        told = told or Fate(verdict=chain.policy, by=f"the policy of the chain {chain.name}")
        if told.verdict in _REFUSES and told.sure:
            return told if doubtful is None else msgspec.structs.replace(told, sure=False)
        if told.verdict in _REFUSES:
            doubtful = doubtful or told
    return doubtful or Fate(verdict="accept", by="no rule against it")


def _by_name(chains: Sequence[Chain], like: Chain) -> Mapping[str, Chain]:
    return {chain.name: chain for chain in chains if (chain.family, chain.table) == (like.family, like.table)}


def _through(chain: Chain, packet: Packet, others: Mapping[str, Chain], depth: int) -> Fate | None:
    """The first verdict that is sure, not sure where a doubtful rule before it says otherwise; None at the end."""
    doubtful: list[Fate] = []
    for rule in chain.rules if depth < _DEEPEST else ():
        fits = matches(rule, packet)
        if fits is False or not rule.verdict:
            continue
        told: Fate | None = Fate(verdict=rule.verdict, by=f"the rule `{rule.text}`")
        if rule.verdict in _GOING:
            told = _through(others[rule.target], packet, others, depth + 1) if rule.target in others else None
        if fits and (rule.verdict == "return" or (rule.verdict == "goto" and told is None)):
            break
        if told is None or told.verdict == "return":
            continue
        if fits and told.sure:
            return msgspec.structs.replace(told, sure=all(each.verdict == told.verdict for each in doubtful))
        doubtful.append(msgspec.structs.replace(told, sure=False))
    refusing = [each for each in doubtful if each.verdict in _REFUSES]
    if not doubtful:
        return None
    if refusing and not (chain.hook and chain.policy == "drop" and refusing == doubtful):
        return refusing[0]
    if refusing:
        return Fate(verdict="drop", by=f"the policy of the chain {chain.name}")
    return Fate(verdict=chain.policy, by=f"the policy of the chain {chain.name}", sure=False)


def matches(rule: Rule, packet: Packet) -> bool | None:
    """True, False, or None where it may."""
    inward = packet.hook == "input"
    peers, selves = (rule.sources, rule.destinations) if inward else (rule.destinations, rule.sources)
    devices, others = (rule.inward, rule.outward) if inward else (rule.outward, rule.inward)
    answers = [
        rule.new,
        _any(rule.protocols, lambda name: name.lower() in {"tcp", "6", "all"}),
        _any(devices, lambda name: fnmatch.fnmatchcase(packet.interface, name)),
        _on_ports(rule.ports, packet.ports),
        _among(peers, packet.peers),
        None if selves or others else True,
        None if not rule.sure else True,
    ]
    return False if False in answers else None if None in answers else True


def _any(values: Sequence[str], fits: Callable[[str], bool]) -> bool | None:
    """Whether one of the values fits, or with a ``!`` before all of them none does. Without any value all fits."""
    return not values or any(fits(value.lstrip("!")) for value in values) is not values[0].startswith("!")


def _on_ports(spans: Sequence[tuple[int, int]], wanted: tuple[int, int]) -> bool | None:
    if not spans or any(first <= wanted[0] and wanted[1] <= last for first, last in spans):
        return True
    return None if any(first <= wanted[1] and wanted[0] <= last for first, last in spans) else False


def _among(networks: Sequence[str], peers: IPv4Network | IPv6Network) -> bool | None:
    """Whether the peers are in one of the networks, or outside all that have a ``!``; None where some may be."""
    if not networks:
        return True
    answers: list[bool | None] = []
    for text in networks:
        try:
            network = ip_network(text.lstrip("!"), strict=False)
        except ValueError:  # the name of a set of addresses
            answers.append(None)
            continue
        if network.version == peers.version:
            inside = network.supernet_of(peers)  # type: ignore[arg-type]  # their versions are the same
            answers.append(True if inside else None if network.overlaps(peers) else False)
    if not answers:
        return False  # a rule about the other version of IP does not match, whichever way it is turned
    answer = True if True in answers else None if None in answers else False
    return answer if answer is None else answer is not networks[0].startswith("!")


def _claim(seen: Firewall, level: Level, message: str, confidence: float, packet: Packet | None = None) -> Finding:
    cause = by_name("firewall-blocked-ports")
    network = packet.peers if packet is not None else "NETWORK/PREFIX"
    command = {
        "ufw": f"ufw allow from {network}",
        "firewalld": f"firewall-cmd --permanent --zone=trusted --add-source={network} && firewall-cmd --reload",
    }.get(seen.manager or ("ufw" if seen.ufw_policy else ""), "nft -a list ruleset")
    text = "Let the other hosts of this network in (all ports; the network alone)."
    if command.startswith("nft"):
        text = "See the rules with their numbers, and let the other hosts in before the one that refuses."
    return finding(
        cause,
        message,
        level=level,
        evidence=seen.facts(),
        confidence=confidence,
        remedies=(Remedy(text=text, command=command), *cause.remedies),
    )
