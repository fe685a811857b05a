"""Packets evaluated by recorded rules, and by real rules of hosts in network namespaces."""

import sys
from ipaddress import ip_network

import msgspec
import pytest

from holdfast.core.findings import Unknown
from holdfast.host.check_rules.network.firewall import Packet, evaluate_packet, rule_matches
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.firewall import FirewallResult
from holdfast.host.netfilter import FirewallRule, from_iptables, from_nft
from tests.network_namespaces import EPHEMERAL, hosts, why_not
from tests.unit.host.check_rules.findings_of import findings_of
from tests.unit.host.checks.test_firewall import IPTABLES, NFT

ELSEWHERE = CheckContext(endpoint=("10.1.0.6", 29500))
NETWORKS = (("eth0", "10.1.0.5/16"),)


def outcome_of(chains, port, peers="10.1.0.0/16", hook="input"):
    packet = Packet(peers=ip_network(peers), interface="eth0", ports=(port, port), hook=hook)
    outcome = evaluate_packet(chains, packet)
    return outcome.verdict, outcome.certain


@pytest.mark.parametrize(
    ("port", "peers", "expected"),
    [
        (22, "10.1.0.0/16", ("accept", True)),
        (8050, "10.1.0.0/16", ("accept", True)),
        (22, "192.168.0.0/16", ("reject", False)),  # after a rule that may accept it
        (29500, "10.1.0.0/16", ("reject", False)),
        (22, "fd00::/64", ("reject", False)),
    ],
)
def test_through_nft(port, peers, expected):
    assert outcome_of(from_nft(NFT), port, peers) == expected


@pytest.mark.parametrize(
    ("networks", "peers", "expected"),
    [
        (("10.1.0.0/16", "10.2.0.0/16"), "10.1.0.0/24", True),
        (("10.1.0.0/16", "10.2.0.0/16"), "10.0.0.0/8", None),
        (
            ("!10.1.0.0/16", "!10.2.0.0/16"),
            "10.1.0.0/24",
            False,
        ),  # inside an excluded network
        (("!10.1.0.0/16", "!10.2.0.0/16"), "10.3.0.0/24", True),
        (("!10.1.0.0/16", "!@trusted"), "10.3.0.0/24", None),
        (("!10.1.0.0/16",), "fd00::/64", False),
        ((), "fd00::/64", True),
    ],
)
def test_networks_that_a_rule_includes_or_excludes(networks, peers, expected):
    answer = rule_matches(
        FirewallRule(text="", sources=networks),
        Packet(peers=ip_network(peers), interface="e", ports=(1, 1)),
    )
    assert answer is expected


def test_interfaces_that_a_rule_excludes():
    packet = Packet(peers=ip_network("10.1.0.0/16"), interface="eth0", ports=(1, 1))
    assert rule_matches(FirewallRule(text="", in_interfaces=("!lo", "!eth0")), packet) is False
    assert rule_matches(FirewallRule(text="", in_interfaces=("!lo", "!ib0")), packet) is True


def test_without_the_doubtful_rule_the_outcome_is_certain():
    chains = from_nft(
        NFT.replace(b'{"limit": {"rate": 5, "per": "minute"}}, ', b"").replace(
            b'"handle": 8', b'"h": 8'
        )
    )
    assert outcome_of(chains, 29500) == ("accept", True)  # the rate-limited rule now accepts all
    cut = [
        msgspec.structs.replace(
            chain, rules=tuple(r for r in chain.rules if r.ports or r.verdict != "accept")
        )
        for chain in chains
    ]
    assert outcome_of(cut, 29500) == ("reject", True)


@pytest.mark.parametrize(
    ("port", "expected"),
    [(22, ("accept", True)), (29505, ("accept", True)), (9, ("drop", True)), (80, ("drop", True))],
)
def test_through_iptables(port, expected):
    assert outcome_of(from_iptables(IPTABLES, "ip"), port) == expected
    assert outcome_of(from_iptables(IPTABLES, "ip"), port, hook="output") == ("accept", True)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (
            "-A INPUT -j a\n-A INPUT -j DROP\n-A a -j a\n",
            "drop",
        ),  # a loop, which the kernel rejects
        (
            "-A INPUT -g a\n-A INPUT -j DROP\n-A a -p udp -j DROP\n",
            "accept",
        ),  # goto does not return
        ("-A INPUT -j a\n-A INPUT -j DROP\n-A a -p tcp -j RETURN\n-A a -j ACCEPT\n", "drop"),
        ("-A INPUT -i eth+ -j DROP\n", "drop"),
        ("-A INPUT ! -i eth0 -j DROP\n", "accept"),
        ("-A INPUT ! -s 10.1.0.0/16 -j DROP\n", "accept"),
        ("-A INPUT -p udp -j DROP\n", "accept"),
        ("-A INPUT -m conntrack --ctstate INVALID -j DROP\n", "accept"),
    ],
)
def test_chains(rules, expected):
    chains = from_iptables(b"*filter\n:INPUT ACCEPT [0:0]\n:a - [0:0]\n" + rules.encode(), "ip")
    assert outcome_of(chains, 29500) == (expected, True)


def test_unreadable_ufw_rules():
    result = FirewallResult(chains=Unknown("you must be root"), ufw_policy="drop")
    ((level, cause, message),) = findings_of("firewall", CheckContext(), result)
    assert (level, cause) == ("warning", "firewall-blocked-ports")
    assert "ufw is active and drops" in message
    assert (
        findings_of("firewall", CheckContext(), FirewallResult(chains=Unknown("you must be root")))
        == []
    )


def test_both_port_ranges_are_reported_in_one_finding():
    result = FirewallResult(
        chains=from_iptables(IPTABLES.replace(b":29510", b""), "ip"),
        manager="ufw",
        networks=NETWORKS,
        ephemeral=(32768, 60999),
    )
    ((level, _, message),) = findings_of("firewall", CheckContext(), result)
    assert level == "warning"  # there may be no other hosts
    assert (
        "drops connections from other hosts on eth0, to ports 32768-60999, by the policy of chain"
        in message
    )
    assert (
        findings_of("firewall", ELSEWHERE, msgspec.structs.replace(result, endpoint=("10.1.0.6",)))[
            0
        ][0]
        == "error"
    )


_SCRIPT = """
import sys, msgspec
from holdfast.host.checks import CHECKS, CheckContext
from holdfast.host.check_rules import judge_check
context, check = CheckContext(endpoint=(sys.argv[1], 29500)), CHECKS["firewall"]
sys.stdout.buffer.write(msgspec.json.encode(judge_check(check, check.run(context), context, "a")))
"""


@pytest.fixture(scope="module")
def pair():
    with hosts(2) as both:
        yield both


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(
    ("fault", "level", "words"),
    [
        (lambda *_: None, None, ""),
        (
            lambda one, _: one.drop(port=29500),
            "error",
            "drops connections from other hosts on eth0, to port 29500",
        ),
        (
            lambda one, _: one.reject(port=EPHEMERAL),
            "error",
            "rejects connections from other hosts on eth0, to",
        ),
        (lambda one, two: one.drop(peer=two), "error", "drops connections from"),
        (
            lambda one, _: one.reject(direction="out"),
            "error",
            "rejects connections to other hosts on eth0",
        ),
    ],
)
def test_a_real_host(pair, fault, level, words):
    one, two = pair
    fault(one, two)
    try:
        findings = msgspec.json.decode(one.do(sys.executable, "-c", _SCRIPT, two.address))
    finally:
        one.mend()
    assert [finding["level"] for finding in findings] == ([level] if level else [])
    assert all(words in finding["message"] for finding in findings)
