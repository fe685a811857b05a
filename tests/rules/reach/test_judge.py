"""What is said of sets of hosts that met."""

import pytest

from holdfast.facts.reach import Fate, Interface, Naming, Published, Stranger
from holdfast.findings import Level, Unknown
from holdfast.rules.reach import failing, judge, unseen
from tests.rules.reach.sets import approach, clocks, crossing, gathered, link, with_approach, with_copy

ALL_LINKS = tuple(link(first, second) for first in range(4) for second in range(first + 1, 4))


def told(found):
    return [(claim.cause, str(claim.level), claim.subject.host or claim.subject.link) for claim in judge(found)]


def test_nothing_is_said_where_all_is_well():
    assert judge(gathered(4, links=ALL_LINKS, clocks=clocks(0, 1e-4, -2e-4, 0))) == ()


def test_who_is_missing_is_named():
    (claim,) = judge(gathered(2, nodes=5))
    assert claim.cause == "host-never-arrived"
    assert claim.message == (
        "node 2-4 of 5 never came to h0:29500 within 10 s: not started, or what is sent from there does not arrive"
    )


def test_who_is_missing_is_counted_where_ranks_are_not_known():
    found = with_copy(gathered(2, nodes=4), 1, node=None)
    assert "2 nodes of 4 never came" in judge(found)[0].message


@pytest.mark.parametrize(
    ("fate", "word"), [(Fate.SILENT, "vanish"), (Fate.REJECTED, "rejected"), (Fate.REFUSED, "refused")]
)
def test_a_port_that_is_blocked_on_the_way_is_told_from_one_where_nobody_listens(fate, word):
    (claim,) = judge(with_approach(gathered(2), 1, approach(fate, side=Fate.OPEN)))
    assert (claim.cause, claim.subject.host) == ("firewall-blocked-ports", "h0")
    assert word in claim.message


def test_a_port_that_is_taken():
    taken = approach(main=None, side=(), owned=True, bound="Address already in use")
    found = with_approach(with_approach(gathered(2), 0, taken), 1, approach(Fate.FOREIGN, side=Fate.OPEN))
    assert told(found) == [("port-in-use", "error", "h0")]


def test_numbers_of_nodes_that_differ_and_a_rank_that_was_given_twice():
    assert "2 on h0; 3 on h1" in judge(with_copy(gathered(2), 1, nodes=3))[0].message
    assert "node rank 0 was given 2 times: on h0, h1" in judge(with_copy(gathered(2), 1, node=0))[0].message


def test_versions_that_differ_are_one_warning():
    (claim,) = judge(with_copy(gathered(3), 2, version="2"))
    assert claim.level is Level.WARNING
    assert "1 on h0, h1; 2 on h2" in claim.message


def test_versions_that_do_not_understand_each_other_are_an_error():
    found = judge(gathered(1, nodes=2, strangers=(Stranger("9.9", "h1", 1),)))
    assert [(claim.cause, claim.level) for claim in found] == [
        ("launch-arguments-differ", Level.ERROR), ("host-never-arrived", Level.ERROR),
    ]  # fmt: skip
    assert found[0].message == (
        "h1 (node 1) has holdfast 9.9, and h0 (node 0), which leads, has 1: they do not understand each other"
    )


def test_the_address_of_another_node():
    found = with_copy(with_copy(gathered(2), 0, node=1), 1, node=0)
    (claim,) = judge(found)
    assert claim.cause == "master-unreachable"
    assert "is an address of h0 (node 1), and not of h1 (node 0)" in claim.message
    assert failing(found, (claim,)) == set()


def test_loopback_as_endpoint():
    own = approach(host="127.0.0.1", addresses=("127.0.0.1",), main=None, side=(), owned=True, bound="listening")
    claims = judge(with_approach(gathered(1, nodes=2), 0, own))
    assert [claim.cause for claim in claims] == ["master-unreachable", "host-never-arrived"]
    assert claims[0].confidence > claims[1].confidence


def test_a_name_that_means_nothing_on_the_leader():
    lost = approach(addresses=Unknown("Name or service not known"), main=None, side=(), bound="listening")
    assert judge(with_approach(gathered(1, nodes=2), 0, lost))[0].cause == "hostname-resolution"


@pytest.mark.parametrize(
    ("fate", "cause"),
    [
        (Fate.SILENT, "firewall-blocked-ports"), (Fate.REJECTED, "firewall-blocked-ports"),
        (Fate.REFUSED, "firewall-blocked-ports"), (Fate.NO_ROUTE, "network-interface-wrong"),
        (Fate.NOBODY, "network-fabric-fault"), (Fate.FOREIGN, "network-interface-wrong"),
        (Fate.STALLED, "mtu-black-hole"), (Fate.FAILED, "network-fabric-fault"),
    ],
)  # fmt: skip
def test_every_fate_of_a_link_has_its_cause(fate, cause):
    found = gathered(2, crossings=(crossing(1, 0, fate, by="10.9.9.9", detail="words"),))
    assert told(found) == [(cause, "error", "h1 -> h0")]


def test_a_host_that_all_others_cannot_reach_is_named_once():
    found = gathered(4, crossings=tuple(crossing(source, 2, Fate.SILENT) for source in (0, 1, 3)))
    (claim,) = judge(found)
    assert claim.subject.host == "h2"
    assert "to h2 (node 2) from each of 3 hosts" in claim.message
    assert failing(found, (claim,)) == {"h2 (node 2)"}


def test_a_host_and_a_link_beside_it_are_two_findings():
    pairs = [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2), (0, 1)]
    found = gathered(4, crossings=tuple(crossing(*pair, Fate.SILENT) for pair in pairs))
    assert sorted(claim.subject.host or claim.subject.link for claim in judge(found)) == ["h0 -> h1", "h3"]


def test_ports_of_the_range_are_a_warning_and_silent_where_nothing_gets_through_at_all():
    ranged = tuple(crossing(1, 0, Fate.SILENT, "range", port) for port in (29501, 29502, 29505))
    (claim,) = judge(gathered(2, crossings=ranged))
    assert claim.level is Level.WARNING
    assert "ports 29501-29502,29505 of h0" in claim.message
    assert len(judge(gathered(2, crossings=(*ranged, crossing(1, 0, Fate.SILENT))))) == 1


def test_the_address_that_gloo_would_publish():
    docker = Published(who="gloo", address="172.17.0.1", interface="docker0", why="GLOO_SOCKET_IFNAME=docker0")
    found = with_copy(gathered(2, crossings=(crossing(1, 0, Fate.FOREIGN, "gloo"),)), 0, published=(docker,))
    (claim,) = judge(found)
    assert "gloo of h0 (node 0) would publish 172.17.0.1 on docker0 (GLOO_SOCKET_IFNAME=docker0)" in claim.message


@pytest.mark.parametrize(("devices", "level"), [(False, Level.ERROR), (True, Level.WARNING)])
def test_loopback_is_no_address_for_others(devices, level):
    own = Published(who="gloo", address="127.0.1.1", interface="lo", why="the own name h1 means it")
    (claim,) = judge(with_copy(gathered(2), 1, published=(own,), devices=devices))
    assert (claim.cause, claim.level, claim.subject.host) == ("network-interface-wrong", level, "h1")


def test_loopback_does_where_all_copies_are_on_one_machine():
    own = Published(who="gloo", address="127.0.1.1", interface="lo")
    found = gathered(2)
    for number in range(2):
        found = with_copy(found, number, published=(own,), machine="one")
    assert judge(found) == ()


def test_an_interface_that_is_not_there():
    missing = Published(who="gloo", address=Unknown("GLOO_SOCKET_IFNAME=eth9, and no interface eth9 is up here"))
    assert "no interface eth9" in judge(with_copy(gathered(2), 1, published=(missing,)))[0].message


@pytest.mark.parametrize("meant", [Unknown("Name or service not known"), ("10.7.7.7",)])
def test_a_host_that_others_do_not_find_by_the_name_it_gives_itself(meant):
    (claim,) = judge(gathered(2, namings=(Naming(source=0, target=1, name="h1", addresses=meant),)))
    assert (claim.cause, claim.level, claim.subject.host) == ("hostname-resolution", Level.WARNING, "h1")


def test_a_slow_host_and_a_slow_link():
    wide = tuple(link(a, b, 1e8 if b == 4 else 1e9) for a in range(5) for b in range(a + 1, 5))
    assert told(gathered(5, links=wide)) == [("slow-link", "warning", "h4")]
    one = tuple(link(a, b, 1e8 if (a, b) == (0, 1) else 1e9) for a in range(4) for b in range(a + 1, 4))
    assert told(gathered(4, links=one)) == [("slow-link", "warning", "h0 -> h1")]


def test_a_large_message_that_stalls_while_it_is_measured():
    assert told(gathered(2, links=(link(0, 1, fate=Fate.STALLED, back=None),))) == [
        ("mtu-black-hole", "error", "h0 -> h1")
    ]


@pytest.mark.parametrize(("off", "level"), [(3.0, Level.WARNING), (-0.2, Level.NOTE)])
def test_a_clock_that_is_off(off, level):
    (claim,) = judge(gathered(3, clocks=clocks(0, off, 1e-4)))
    assert (claim.cause, claim.level, claim.subject.host) == ("clocks-differ", level, "h1")
    assert ("ahead of" if off > 0 else "behind") in claim.message


def test_the_leader_whose_own_clock_is_off_is_named():
    (claim,) = judge(gathered(4, clocks=clocks(0, 3, 3, 3)))
    assert claim.subject.host == "h0"


def test_a_host_that_falls_silent_is_named():
    (claim, *_) = judge(gathered(2, lost={1: "its connection was lost"}))
    assert (claim.cause, claim.level, claim.subject.host) == ("network-fabric-fault", Level.ERROR, "h1")
    assert claim.message == "h1 (node 1) came to h0:29500 and then fell silent: its connection was lost"


def test_what_was_not_seen_is_said():
    said = list(unseen(gathered(2, unmeasured=3)))
    assert "3 pairs" in said[0]
    assert "no report" in said[1]


def test_interfaces_stand_in_the_evidence():
    own = Published(who="gloo", address="127.0.0.1", interface="lo")
    (claim,) = judge(with_copy(gathered(2), 1, published=(own,), interfaces=(Interface("eth7", "10.0.0.7", 1500),)))
    assert "eth7 10.0.0.7" in claim.evidence[0].text


def test_a_network_with_another_mtu():
    (claim,) = judge(with_copy(gathered(3), 2, interfaces=(Interface("eth0", "10.0.0.2", 9000),)))
    assert (claim.cause, claim.level) == ("mtu-black-hole", Level.WARNING)
    assert claim.message == "the MTU differs between hosts: 9000 bytes on h2 (node 2), 1500 bytes on the other 2"


def test_one_slow_host_of_three_is_named():
    assert told(gathered(3, links=(link(0, 1), link(0, 2, 1e8), link(1, 2, 1e8)))) == [("slow-link", "warning", "h2")]


def test_who_is_missing_has_the_name_that_the_scheduler_gave():
    (claim,) = judge(with_copy(gathered(1, nodes=2), 0, names=("gpu-01", "gpu-02")))
    assert claim.message.startswith("node 1 (gpu-02) of 2 never came")


def test_a_firewall_on_all_hosts_is_one_finding_and_all_of_them_fail():
    found = gathered(5, crossings=tuple(crossing(a, b, Fate.SILENT) for a in range(5) for b in range(5) if a != b))
    (claim,) = judge(found)
    assert claim.message.startswith("packets between all 5 hosts (20 ways) vanish")
    assert (claim.subject.host, claim.subject.link) == (None, None)
    assert failing(found, (claim,)) == {f"h{number} (node {number})" for number in range(5)}


def test_what_another_version_tried_for_a_purpose_of_its_own_stops_nothing():
    assert judge(gathered(2, crossings=(crossing(1, 0, Fate.SILENT, purpose="teleport"),))) == ()
