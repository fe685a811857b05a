"""Packets followed through recorded rules, and through real ones of hosts in name spaces."""

import sys
from ipaddress import ip_network

import msgspec
import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks.firewall import Firewall
from holdfast.facts.netfilter import Rule, from_iptables, from_nft
from holdfast.findings import Unknown
from holdfast.rules.machine.firewall import Packet, fate, matches
from tests.facts.checks.test_firewall import IPTABLES, NFT
from tests.hosts import EPHEMERAL, hosts, why_not
from tests.rules.machine.asked import found

ELSEWHERE = Place(endpoint=("10.1.0.6", 29500))
NETWORKS = (("eth0", "10.1.0.5/16"),)


def told(chains, port, peers="10.1.0.0/16", hook="input"):
    packet = Packet(peers=ip_network(peers), interface="eth0", ports=(port, port), hook=hook)
    answer = fate(chains, packet)
    return answer.verdict, answer.sure


@pytest.mark.parametrize(
    ("port", "peers", "expected"),
    [
        (22, "10.1.0.0/16", ("accept", True)),
        (8050, "10.1.0.0/16", ("accept", True)),
        (22, "192.168.0.0/16", ("reject", False)),  # a rule that accepts some stands before it
        (29500, "10.1.0.0/16", ("reject", False)),
        (22, "fd00::/64", ("reject", False)),
    ],
)
def test_through_nft(port, peers, expected):
    assert told(from_nft(NFT), port, peers) == expected


@pytest.mark.parametrize(
    ("networks", "peers", "expected"),
    [
        (("10.1.0.0/16", "10.2.0.0/16"), "10.1.0.0/24", True),
        (("10.1.0.0/16", "10.2.0.0/16"), "10.0.0.0/8", None),
        (("!10.1.0.0/16", "!10.2.0.0/16"), "10.1.0.0/24", False),  # inside one of those that are excepted
        (("!10.1.0.0/16", "!10.2.0.0/16"), "10.3.0.0/24", True),
        (("!10.1.0.0/16", "!@trusted"), "10.3.0.0/24", None),
        (("!10.1.0.0/16",), "fd00::/64", False),
        ((), "fd00::/64", True),
    ],
)
def test_networks_that_a_rule_names_or_excepts(networks, peers, expected):
    answer = matches(Rule(text="", sources=networks), Packet(peers=ip_network(peers), interface="e", ports=(1, 1)))
    assert answer is expected


def test_interfaces_that_a_rule_excepts():
    packet = Packet(peers=ip_network("10.1.0.0/16"), interface="eth0", ports=(1, 1))
    assert matches(Rule(text="", inward=("!lo", "!eth0")), packet) is False
    assert matches(Rule(text="", inward=("!lo", "!ib0")), packet) is True


def test_without_the_doubtful_rule_it_is_sure():
    chains = from_nft(NFT.replace(b'{"limit": {"rate": 5, "per": "minute"}}, ', b"").replace(b'"handle": 8', b'"h": 8'))
    assert told(chains, 29500) == ("accept", True)  # what was limited now accepts all
    cut = [msgspec.structs.replace(chain, rules=tuple(r for r in chain.rules if r.ports or r.verdict != "accept"))
           for chain in chains]  # fmt: skip
    assert told(cut, 29500) == ("reject", True)


@pytest.mark.parametrize(
    ("port", "expected"), [(22, ("accept", True)), (29505, ("accept", True)), (9, ("drop", True)), (80, ("drop", True))]
)
def test_through_iptables(port, expected):
    assert told(from_iptables(IPTABLES, "ip"), port) == expected
    assert told(from_iptables(IPTABLES, "ip"), port, hook="output") == ("accept", True)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("-A INPUT -j a\n-A INPUT -j DROP\n-A a -j a\n", "drop"),  # a circle, which no kernel takes
        ("-A INPUT -g a\n-A INPUT -j DROP\n-A a -p udp -j DROP\n", "accept"),  # goto does not come back
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
    assert told(chains, 29500) == (expected, True)


def test_ufw_that_is_closed_to_us():
    seen = Firewall(chains=Unknown("you must be root"), ufw_policy="drop")
    ((level, cause, message),) = found("firewall", Place(), seen)
    assert (level, cause) == ("warning", "firewall-blocked-ports")
    assert "ufw is on and drops" in message
    assert found("firewall", Place(), Firewall(chains=Unknown("you must be root"))) == []


def test_both_kinds_of_ports_are_told_in_one_finding():
    seen = Firewall(chains=from_iptables(IPTABLES.replace(b":29510", b""), "ip"), manager="ufw", networks=NETWORKS,
                    ephemeral=(32768, 60999))  # fmt: skip
    ((level, _, message),) = found("firewall", Place(), seen)
    assert level == "warning"  # nothing says that there will be other hosts
    assert "drops connections in from other hosts on eth0, to ports 32768-60999, by the policy of the chain" in message
    assert found("firewall", ELSEWHERE, msgspec.structs.replace(seen, endpoint=("10.1.0.6",)))[0][0] == "error"


_SCRIPT = """
import sys, msgspec
from holdfast.facts.checks import CHECKS, Place
from holdfast.rules.machine import judge
place, check = Place(endpoint=(sys.argv[1], 29500)), CHECKS["firewall"]
sys.stdout.buffer.write(msgspec.json.encode(judge(check, check.look(place), place, "a")))
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
        (lambda one, _: one.drop(port=29500), "error", "drops connections in from other hosts on eth0, to port 29500"),
        (lambda one, _: one.reject(port=EPHEMERAL), "error", "rejects connections in from other hosts on eth0, to"),
        (lambda one, two: one.drop(peer=two), "error", "drops connections in"),
        (lambda one, _: one.reject(direction="out"), "error", "rejects connections out to other hosts on eth0"),
    ],
)  # fmt: skip
def test_a_real_host(pair, fault, level, words):
    one, two = pair
    fault(one, two)
    try:
        claims = msgspec.json.decode(one.do(sys.executable, "-c", _SCRIPT, two.address))
    finally:
        one.mend()
    assert [claim["level"] for claim in claims] == ([level] if level else [])
    assert all(words in claim["message"] for claim in claims)
