"""Who came, who did not, who contradicts whom, and which of them came in by a side door."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast.facts.reach import Copy, Fate, Gathered, Present
from holdfast.facts.reach.addresses import is_loopback
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, finding
from holdfast.report.ranksets import compress_ranks
from holdfast.report.text import plural
from holdfast.rules.causes import by_name
from holdfast.rules.reach import way

_MOST_NAMED = 16


def judge(gathered: Gathered) -> Iterator[Finding]:
    """The reason first, then that somebody is missing."""
    copies = [each.copy for each in gathered.present]
    yield from _contradictions(copies)
    yield from _versions(copies)
    yield from _strangers(gathered)
    leader = next((each for each in gathered.present if each.leads), None)
    if leader is None:
        return
    yield from _taken(leader, gathered)
    yield from _wrong_host(leader, gathered)
    yield from _side_doors(leader, gathered)
    yield from _missing(leader, gathered)


def missing(gathered: Gathered) -> tuple[list[int], int]:
    """The node ranks that did not come, where the ranks are known, and how many did not come."""
    nodes = {each.copy.node for each in gathered.present}
    count = gathered.nodes - len(gathered.present)
    if None in nodes or count <= 0:
        return [], max(count, 0)
    return [node for node in range(gathered.nodes) if node not in nodes], count


def _missing(leader: Present, gathered: Gathered) -> Iterator[Finding]:
    nodes, count = missing(gathered)
    if not count:
        return
    names = leader.copy.names
    called = ", ".join(names[node] for node in nodes[:_MOST_NAMED] if node < len(names))
    who = f"node {compress_ranks(nodes)}" + (f" ({called})" * bool(called)) if nodes else plural(count, "node")
    came = ", ".join(each.copy.label for each in gathered.present[:_MOST_NAMED])
    yield finding(
        by_name("host-never-arrived"),
        f"{who} of {gathered.nodes} never came to {leader.copy.endpoint} within {gathered.waited_s:.0f} s: not "
        "started, or what is sent from there does not arrive",
        evidence=(Fact(text=f"here: {came}", origin="the meeting", host=leader.copy.host),
                  *way.facts(leader.copy, leader.approach)),
        confidence=0.9,
    )  # fmt: skip


def _contradictions(copies: list[Copy]) -> Iterator[Finding]:
    sizes = defaultdict(list)
    for copy in copies:
        sizes[copy.nodes].append(copy)
    facts = tuple(
        Fact(text=f"node {'?' if copy.node is None else copy.node} of {copy.nodes}, endpoint {copy.endpoint}",
             origin="the command line", host=copy.host)
        for copy in copies[:_MOST_NAMED]
    )  # fmt: skip
    if len(sizes) > 1:
        said = "; ".join(f"{size} on {_hosts(group)}" for size, group in sorted(sizes.items()))
        yield finding(
            by_name("launch-arguments-differ"), f"the hosts were started with different numbers of nodes: {said}",
            evidence=facts, confidence=0.99,
        )  # fmt: skip
    for node, count in sorted(Counter(copy.node for copy in copies if copy.node is not None).items()):
        if count > 1:
            twins = [copy for copy in copies if copy.node == node]
            yield finding(
                by_name("launch-arguments-differ"), f"node rank {node} was given {count} times: on {_hosts(twins)}",
                evidence=facts, confidence=0.99,
            )  # fmt: skip


def _hosts(copies: list[Copy]) -> str:
    named = ", ".join(copy.host for copy in copies[:_MOST_NAMED])
    return named + (f" and {len(copies) - _MOST_NAMED} more" if len(copies) > _MOST_NAMED else "")


def _versions(copies: list[Copy]) -> Iterator[Finding]:
    groups = defaultdict(list)
    for copy in copies:
        groups[copy.version].append(copy)
    if len(groups) > 1:
        said = "; ".join(f"{version} on {_hosts(group)}" for version, group in sorted(groups.items()))
        yield finding(
            by_name("launch-arguments-differ"), f"the hosts have different versions of holdfast: {said}",
            level=Level.WARNING, confidence=0.99,
        )  # fmt: skip


def _strangers(gathered: Gathered) -> Iterator[Finding]:
    """Who came and could not be understood."""
    for each in gathered.strangers[:_MOST_NAMED]:
        here = next((present.copy for present in gathered.present if present.leads), gathered.present[0].copy)
        yield finding(
            by_name("launch-arguments-differ"),
            f"{each.label} has holdfast {each.version}, and {here.label}, which leads, has {here.version}: they do not "
            "understand each other",
            subject=Subject(host=each.host), confidence=0.95,
        )  # fmt: skip


def _taken(leader: Present, gathered: Gathered) -> Iterator[Finding]:
    approach = leader.approach
    if approach.bound in ("", "listening"):
        return
    yield finding(
        by_name("port-in-use"),
        f"port {approach.port} of {leader.copy.label} is not free ({approach.bound}): the rendezvous cannot listen"
        " there",
        subject=Subject(host=leader.copy.host), confidence=0.98,
        evidence=tuple(fact for each in gathered.present[:_MOST_NAMED] for fact in way.facts(each.copy, each.approach)),
    )  # fmt: skip


def _wrong_host(leader: Present, gathered: Gathered) -> Iterator[Finding]:
    """The endpoint is not node 0's: a loopback address, another node's, or nobody's. No host is at fault then."""
    first = next((each for each in gathered.present if each.copy.node == 0), None)
    nodes, count = missing(gathered)
    approach = leader.approach
    if (unnamed := way.name_unknown(leader.copy, approach)) is not None:
        yield unnamed
        return
    address = "" if isinstance(approach.addresses, Unknown) else approach.addresses[0]
    if count and is_loopback(address):
        yield way.own_host(leader.copy, approach)
        return
    elsewhere = first is not None and first.copy.machine != leader.copy.machine
    if leader.copy.node not in (0, None) and approach.owned and (elsewhere or 0 in nodes):
        home = first.copy.label if first is not None else "node 0, which did not come"
        message = f"the endpoint {leader.copy.endpoint} is an address of {leader.copy.label}, and not of {home}"
    elif leader.copy.node == 0 and not approach.owned and (count or approach.main is None):
        message = f"the endpoint {leader.copy.endpoint} is no address of {leader.copy.label}: nobody finds it there"
        if approach.main is not None and approach.main.fate is not Fate.OPEN:
            message += f" ({address}: {approach.main.fate})"
    else:
        return
    yield finding(
        by_name("master-unreachable"), message,
        evidence=way.facts(leader.copy, approach), confidence=0.97,
    )  # fmt: skip


def _side_doors(leader: Present, gathered: Gathered) -> Iterator[Finding]:
    """Who came in by a side door while the endpoint is listened at: its port is blocked on the way."""
    if leader.approach.bound != "listening":
        return
    blocked = defaultdict(list)
    for each in gathered.present:
        main = each.approach.main
        if not each.leads and main is not None and main.fate is not Fate.OPEN and any(
            side.fate is Fate.OPEN for side in each.approach.side
        ):  # fmt: skip
            blocked[main.fate].append(each)
    for fate, those in blocked.items():
        verb = "vanish: a firewall drops them" if fate is Fate.SILENT else f"are {_past(fate)}: a firewall does that"
        yield finding(
            by_name("firewall-blocked-ports"),
            f"packets from {_hosts([each.copy for each in those])} to port {leader.approach.port} of "
            f"{leader.copy.label} {verb}; node 0 does listen there, and other ports of it open",
            subject=Subject(host=leader.copy.host), confidence=0.98,
            evidence=tuple(fact for each in those[:_MOST_NAMED] for fact in way.facts(each.copy, each.approach)),
        )  # fmt: skip


def _past(fate: Fate) -> str:
    return str(fate) if fate in (Fate.REJECTED, Fate.REFUSED) else f"lost ({fate})"
