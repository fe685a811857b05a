"""Who does not get through to whom, why, and which host or link that points to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from holdfast.facts.reach import Crossing, Fate, Gathered, Naming, Present
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, finding
from holdfast.report.ranksets import compress_ranks
from holdfast.rules.causes import by_name
from holdfast.rules.reach.blame import Suspect, blame

#: Fate -> cause, how sure, and what happens to what is sent.
_MEANINGS: dict[Fate, tuple[str, float, str]] = {
    Fate.SILENT: ("firewall-blocked-ports", 0.95, ("packets {way} vanish, although a program listens there: a firewall "
                  "drops them")),
    Fate.REJECTED: ("firewall-blocked-ports", 0.97, "connections {way} are rejected by a firewall{by}"),
    Fate.REFUSED: ("firewall-blocked-ports", 0.9, ("connections {way} are refused, although a program listens there: a "
                   "firewall resets them")),
    Fate.NO_ROUTE: ("network-interface-wrong", 0.95, "there is no route for what is sent {way}"),
    Fate.NOBODY: ("network-fabric-fault", 0.85, "no host answers for the address of what is sent {way}"),
    Fate.FOREIGN: ("network-interface-wrong", 0.9, "somebody else answers to what is sent {way}: {detail}"),
    Fate.STALLED: ("mtu-black-hole", 0.96, ("small messages {way} arrive and large ones vanish ({detail}): the path "
                   "carries no packets of that size, and says so to nobody")),
    Fate.FAILED: ("network-fabric-fault", 0.7, "connections {way} break: {detail}"),
}  # fmt: skip
_MOST_FACTS = 16


def judge(gathered: Gathered) -> Iterator[Finding]:
    """Faults of the data ports, then of the addresses that gloo and NCCL publish, of the range, and of names."""
    failed: dict[str, list[Crossing]] = defaultdict(list)
    for each in gathered.crossings:
        failed[each.purpose].append(each)
    data = failed.pop("data", [])
    by_fate: dict[Fate, list[Crossing]] = defaultdict(list)
    for each in data:
        by_fate[each.attempt.fate].append(each)
    for fate, crossings in by_fate.items():
        by_pair = {(each.source, each.target): each for each in crossings}
        for suspect in blame(by_pair, len(gathered.present)):
            yield _blamed(fate, suspect, [by_pair[pair] for pair in suspect.pairs], gathered)
    broken = {(each.source, each.target) for each in data}
    ranged = failed.pop("range", [])
    for who, crossings in failed.items():
        yield from _published(who, [each for each in crossings if (each.source, each.target) not in broken], gathered)
    yield from _range([each for each in ranged if (each.source, each.target) not in broken], gathered)
    yield from _names(gathered)


def everywhere(gathered: Gathered) -> set[int]:
    """The hosts of pairs that fail all over the set, for which no single one is blamed."""
    by_fate: dict[Fate, list[tuple[int, int]]] = defaultdict(list)
    for each in gathered.crossings:
        if each.purpose == "data":
            by_fate[each.attempt.fate].append((each.source, each.target))
    for link in gathered.links:
        if link.fate is not Fate.OPEN:
            by_fate[link.fate].append((link.source, link.target))
    suspects = (each for pairs in by_fate.values() for each in blame(pairs, len(gathered.present)) if each.many)
    return {host for suspect in suspects for pair in suspect.pairs for host in pair}


def _blamed(fate: Fate, suspect: Suspect, mine: list[Crossing], gathered: Gathered) -> Finding:
    cause, sure, sentence = _MEANINGS[fate]
    first = mine[0]
    by = f" (the answer comes from {first.attempt.by})" if first.attempt.by else ""
    message = sentence.format(way=_way(suspect, mine, gathered), by=by, detail=first.attempt.detail)
    return finding(
        by_name(cause), message, subject=_subject(suspect, mine, gathered),
        evidence=tuple(_fact(each, gathered) for each in mine[:_MOST_FACTS]), confidence=sure,
    )  # fmt: skip


def _way(suspect: Suspect, crossings: list[Crossing], gathered: Gathered) -> str:
    """``from a to b`` in words, for one link, for all of a host's, or for many of all."""
    if suspect.many:
        size = len(gathered.present)
        who = f"all {size:,}" if suspect.hosts == size else f"{suspect.hosts:,} of {size:,}"
        return f"between {who} hosts ({len(suspect.pairs):,} ways)"
    if suspect.host is None:
        source, target = suspect.pairs[0]
        names = {at: gathered.present[at].copy.label for at in (source, target)}
        ports = compress_ranks(sorted({each.attempt.port for each in crossings if each.target == target}))
        if len(suspect.pairs) > 1:
            return f"between {names[source]} and {names[target]}, in both directions,"
        return f"from {names[source]} to the data ports of {names[target]} (port {ports})"
    many = f"of {suspect.hosts - 1} hosts"
    name = gathered.present[suspect.host].copy.label
    if suspect.inward and suspect.outward:
        return f"between {name} and each {many}"
    return f"to {name} from each {many}" if suspect.inward else f"from {name} to each {many}"


def _subject(suspect: Suspect, crossings: list[Crossing], gathered: Gathered) -> Subject:
    if suspect.many:
        return Subject()
    if suspect.host is not None:
        return Subject(host=gathered.present[suspect.host].copy.host)
    ends = (gathered.present[at].copy.host for at in (crossings[0].source, crossings[0].target))
    return Subject(link=" -> ".join(ends))


def _fact(crossing: Crossing, gathered: Gathered) -> Fact:
    attempt, names = (
        crossing.attempt,
        [each.copy.host for each in (gathered.present[crossing.source], gathered.present[crossing.target])],
    )
    detail = f" ({attempt.detail})" if attempt.detail else ""
    return Fact(
        text=f"{names[0]} -> {names[1]} at {attempt.address}:{attempt.port}: {attempt.fate}{detail} after "
        f"{attempt.elapsed_s:.2f} s",
        origin="connect", host=names[0],
    )  # fmt: skip


def _published(who: str, crossings: list[Crossing], gathered: Gathered) -> Iterator[Finding]:
    """Hosts reach each other, but not at the address that this library would give to its peers."""
    by_target: dict[int, list[Crossing]] = defaultdict(list)
    for each in crossings:
        by_target[each.target].append(each)
    for target, those in by_target.items():
        copy = gathered.present[target].copy
        if who == "NCCL" and not copy.devices:
            continue
        chosen = next((each for each in copy.published if each.who == who), None)
        if chosen is None:  # a purpose that only another version of holdfast has
            continue
        yield finding(
            by_name("network-interface-wrong"),
            f"{who} of {copy.label} would publish {chosen.address} on {chosen.interface} ({chosen.why}), where "
            f"{_few([gathered.present[each.source] for each in those])} cannot reach it ({those[0].attempt.fate})",
            subject=Subject(host=copy.host), confidence=0.95,
            evidence=tuple(_fact(each, gathered) for each in those[:_MOST_FACTS]),
        )  # fmt: skip


def _range(crossings: list[Crossing], gathered: Gathered) -> Iterator[Finding]:
    by_fate: dict[tuple[int, Fate], list[Crossing]] = defaultdict(list)
    for each in crossings:
        by_fate[each.target, each.attempt.fate].append(each)
    for (target, fate), those in by_fate.items():
        ports = compress_ranks(sorted({each.attempt.port for each in those}))
        sources = {each.source: gathered.present[each.source] for each in those}
        yield finding(
            by_name("firewall-blocked-ports"),
            f"ports {ports} of {gathered.present[target].copy.label} are {fate} from {_few(list(sources.values()))}, "
            "although a program listens there: a job that takes one of them as its master port would wait",
            level=Level.WARNING, subject=Subject(host=gathered.present[target].copy.host), confidence=0.8,
            evidence=tuple(_fact(each, gathered) for each in those[:_MOST_FACTS]),
        )  # fmt: skip


def _names(gathered: Gathered) -> Iterator[Finding]:
    """The c10d rendezvous of torchrun gives the full name of a host to the others, who have to find it by that."""
    lost: dict[int, list[Naming]] = defaultdict(list)
    for each in gathered.namings:
        there, here = gathered.present[each.target].copy, gathered.present[each.source].copy
        own = {interface.address for interface in there.interfaces}
        if there.machine != here.machine and (isinstance(each.addresses, Unknown) or not own & set(each.addresses)):
            lost[each.target].append(each)
    for number, those in lost.items():
        copy = gathered.present[number].copy
        yield finding(
            by_name("hostname-resolution"),
            f"{copy.label} calls itself {those[0].name}, which {_meaning(those[0])} on "
            f"{_few([gathered.present[each.source] for each in those])}: torchrun's c10d rendezvous gives that name to "
            "the others",
            level=Level.WARNING, subject=Subject(host=copy.host), confidence=0.8,
            evidence=tuple(
                Fact(text=f"{each.name} {_meaning(each)}", origin="getaddrinfo",
                     host=gathered.present[each.source].copy.host)
                for each in those[:_MOST_FACTS]
            ),
        )  # fmt: skip


def _meaning(naming: Naming) -> str:
    meant = naming.addresses
    return f"does not resolve ({meant.why})" if isinstance(meant, Unknown) else f"means {', '.join(meant)}"


def _few(present: list[Present]) -> str:
    named = ", ".join(each.copy.host for each in present[:4])
    return named + (f" and {len(present) - 4} more" if len(present) > 4 else "")
