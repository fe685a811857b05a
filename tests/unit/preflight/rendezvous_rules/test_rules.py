"""Findings about several hosts after a rendezvous."""

import pytest

from holdfast.core.findings import Level, Unknown
from holdfast.preflight.rendezvous import (
    ConnectOutcome,
    EndpointLookup,
    IncompatiblePeer,
    InterfaceAddress,
    PublishedAddress,
)
from holdfast.preflight.rendezvous_rules import failing_hosts, judge, unobserved
from tests.unit.preflight.rendezvous_rules.observed_hosts import (
    access,
    clocks,
    link,
    observations,
    probe_result,
    with_access,
    with_peer,
)

ALL_LINKS = tuple(link(first, second) for first in range(4) for second in range(first + 1, 4))


def summaries(observed):
    return [
        (finding.cause, str(finding.level), finding.subject.host or finding.subject.link)
        for finding in judge(observed)
    ]


def test_healthy_hosts_have_no_findings():
    assert judge(observations(4, links=ALL_LINKS, clocks=clocks(0, 1e-4, -2e-4, 0))) == ()


def test_missing_nodes_are_reported():
    (finding,) = judge(observations(2, nodes=5))
    assert finding.cause == "host-never-arrived"
    assert finding.message == (
        "node 2-4 of 5 did not reach h0:29500 within 10 s: not started, or its packets are lost"
    )


def test_missing_nodes_are_counted_without_ranks():
    observed = with_peer(observations(2, nodes=4), 1, node=None)
    assert "2 nodes of 4 did not reach" in judge(observed)[0].message


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (ConnectOutcome.TIMED_OUT, "dropped"),
        (ConnectOutcome.REJECTED, "rejected"),
        (ConnectOutcome.REFUSED, "refused"),
    ],
)
def test_a_blocked_port_differs_from_one_without_listener(outcome, word):
    (finding,) = judge(with_access(observations(2), 1, access(outcome, side=ConnectOutcome.OPEN)))
    assert (finding.cause, finding.subject.host) == ("firewall-blocked-ports", "h0")
    assert word in finding.message


def test_a_port_in_use():
    port_in_use = access(main=None, side=(), owned=True, bound="Address already in use")
    observed = with_access(
        with_access(observations(2), 0, port_in_use),
        1,
        access(ConnectOutcome.FOREIGN_SERVICE, side=ConnectOutcome.OPEN),
    )
    assert summaries(observed) == [("port-in-use", "error", "h0")]


def test_different_node_counts_and_duplicate_ranks():
    assert "2 on h0; 3 on h1" in judge(with_peer(observations(2), 1, nodes=3))[0].message
    assert (
        "node rank 0 is used 2 times: on h0, h1"
        in judge(with_peer(observations(2), 1, node=0))[0].message
    )


def test_different_versions_are_one_warning():
    (finding,) = judge(with_peer(observations(3), 2, version="2"))
    assert finding.level is Level.WARNING
    assert "1 on h0, h1; 2 on h2" in finding.message


def test_incompatible_versions_are_an_error():
    observed = judge(observations(1, nodes=2, incompatible=(IncompatiblePeer("9.9", "h1", 1),)))
    assert [(finding.cause, finding.level) for finding in observed] == [
        ("launch-arguments-differ", Level.ERROR),
        ("host-never-arrived", Level.ERROR),
    ]
    assert observed[0].message == (
        "h1 (node 1) has holdfast 9.9, and the leader, h0 (node 0), has 1: these versions are "
        "incompatible"
    )


def test_the_address_of_another_node():
    observed = with_peer(with_peer(observations(2), 0, node=1), 1, node=0)
    (finding,) = judge(observed)
    assert finding.cause == "master-unreachable"
    assert "is an address of h0 (node 1), not of h1 (node 0)" in finding.message
    assert failing_hosts(observed, (finding,)) == set()


def test_loopback_as_endpoint():
    own = access(
        host="127.0.0.1",
        addresses=("127.0.0.1",),
        main=None,
        side=(),
        owned=True,
        bound="listening",
    )
    findings = judge(with_access(observations(1, nodes=2), 0, own))
    assert [finding.cause for finding in findings] == ["master-unreachable", "host-never-arrived"]
    assert findings[0].confidence > findings[1].confidence


def test_an_endpoint_that_the_leader_cannot_resolve():
    lost = access(
        addresses=Unknown("Name or service not known"), main=None, side=(), bound="listening"
    )
    assert judge(with_access(observations(1, nodes=2), 0, lost))[0].cause == "hostname-resolution"


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (ConnectOutcome.TIMED_OUT, "firewall-blocked-ports"),
        (ConnectOutcome.REJECTED, "firewall-blocked-ports"),
        (ConnectOutcome.REFUSED, "firewall-blocked-ports"),
        (ConnectOutcome.NO_ROUTE, "network-interface-wrong"),
        (ConnectOutcome.NO_HOST, "network-fabric-fault"),
        (ConnectOutcome.FOREIGN_SERVICE, "network-interface-wrong"),
        (ConnectOutcome.STALLED, "mtu-black-hole"),
        (ConnectOutcome.FAILED, "network-fabric-fault"),
    ],
)
def test_every_link_outcome_has_its_cause(outcome, cause):
    observed = observations(
        2, failed_probes=(probe_result(1, 0, outcome, by="10.9.9.9", detail="words"),)
    )
    assert summaries(observed) == [(cause, "error", "h1 -> h0")]


def test_an_unreachable_host_is_reported_once():
    observed = observations(
        4,
        failed_probes=tuple(
            probe_result(source, 2, ConnectOutcome.TIMED_OUT) for source in (0, 1, 3)
        ),
    )
    (finding,) = judge(observed)
    assert finding.subject.host == "h2"
    assert "to h2 (node 2) from each of 3 hosts" in finding.message
    assert failing_hosts(observed, (finding,)) == {"h2 (node 2)"}


def test_a_host_and_another_link_are_two_findings():
    pairs = [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2), (0, 1)]
    observed = observations(
        4, failed_probes=tuple(probe_result(*pair, ConnectOutcome.TIMED_OUT) for pair in pairs)
    )
    assert sorted(finding.subject.host or finding.subject.link for finding in judge(observed)) == [
        "h0 -> h1",
        "h3",
    ]


def test_range_ports_are_a_warning_unless_all_ports_are_blocked():
    ranged = tuple(
        probe_result(1, 0, ConnectOutcome.TIMED_OUT, "range", port)
        for port in (29501, 29502, 29505)
    )
    (finding,) = judge(observations(2, failed_probes=ranged))
    assert finding.level is Level.WARNING
    assert "ports 29501-29502,29505 of h0" in finding.message
    assert (
        len(
            judge(
                observations(
                    2, failed_probes=(*ranged, probe_result(1, 0, ConnectOutcome.TIMED_OUT))
                )
            )
        )
        == 1
    )


def test_the_address_that_gloo_would_publish():
    docker = PublishedAddress(
        library="gloo", address="172.17.0.1", interface="docker0", why="GLOO_SOCKET_IFNAME=docker0"
    )
    observed = with_peer(
        observations(
            2, failed_probes=(probe_result(1, 0, ConnectOutcome.FOREIGN_SERVICE, "gloo"),)
        ),
        0,
        published=(docker,),
    )
    (finding,) = judge(observed)
    assert (
        "gloo on h0 (node 0) would publish 172.17.0.1 on docker0 (GLOO_SOCKET_IFNAME=docker0)"
        in finding.message
    )


@pytest.mark.parametrize(("devices", "level"), [(False, Level.ERROR), (True, Level.WARNING)])
def test_published_loopback_is_a_finding(devices, level):
    own = PublishedAddress(
        library="gloo",
        address="127.0.1.1",
        interface="lo",
        why="the host's own name h1 resolves to it",
    )
    (finding,) = judge(with_peer(observations(2), 1, published=(own,), devices=devices))
    assert (finding.cause, finding.level, finding.subject.host) == (
        "network-interface-wrong",
        level,
        "h1",
    )


def test_loopback_is_fine_on_one_machine():
    own = PublishedAddress(library="gloo", address="127.0.1.1", interface="lo")
    observed = observations(2)
    for number in range(2):
        observed = with_peer(observed, number, published=(own,), machine="one")
    assert judge(observed) == ()


def test_a_missing_interface():
    missing = PublishedAddress(
        library="gloo", address=Unknown("GLOO_SOCKET_IFNAME=eth9: interface eth9 is not up")
    )
    assert (
        "interface eth9 is not up"
        in judge(with_peer(observations(2), 1, published=(missing,)))[0].message
    )


@pytest.mark.parametrize("addresses", [Unknown("Name or service not known"), ("10.7.7.7",)])
def test_a_host_name_that_resolves_to_another_host(addresses):
    (finding,) = judge(
        observations(
            2, lookups=(EndpointLookup(source=0, target=1, name="h1", addresses=addresses),)
        )
    )
    assert (finding.cause, finding.level, finding.subject.host) == (
        "hostname-resolution",
        Level.WARNING,
        "h1",
    )


def test_hosts_of_equal_name_are_one_finding():
    lookups = (
        EndpointLookup(source=1, target=0, name="worker", addresses=("10.0.0.1",)),
        EndpointLookup(source=0, target=1, name="worker", addresses=("10.0.0.0",)),
    )
    observed = observations(2, lookups=lookups)
    for number in (0, 1):
        observed = with_peer(observed, number, host="worker", name="worker")
    (finding,) = judge(observed)
    assert finding.cause == "hostname-resolution"
    assert "2 hosts have the same name, worker" in finding.message
    assert "--local-addr" in finding.message


def test_a_slow_host_and_a_slow_link():
    wide = tuple(link(a, b, 1e8 if b == 4 else 1e9) for a in range(5) for b in range(a + 1, 5))
    assert summaries(observations(5, links=wide)) == [("slow-link", "warning", "h4")]
    one = tuple(
        link(a, b, 1e8 if (a, b) == (0, 1) else 1e9) for a in range(4) for b in range(a + 1, 4)
    )
    assert summaries(observations(4, links=one)) == [("slow-link", "warning", "h0 -> h1")]


def test_a_stalled_measurement():
    assert summaries(
        observations(2, links=(link(0, 1, outcome=ConnectOutcome.STALLED, back=None),))
    ) == [("mtu-black-hole", "error", "h0 -> h1")]


@pytest.mark.parametrize(("off", "level"), [(3.0, Level.WARNING), (-0.2, Level.NOTE)])
def test_a_clock_offset(off, level):
    (finding,) = judge(observations(3, clocks=clocks(0, off, 1e-4)))
    assert (finding.cause, finding.level, finding.subject.host) == ("clocks-differ", level, "h1")
    assert ("ahead of" if off > 0 else "behind") in finding.message


def test_the_leaders_own_clock_offset():
    (finding,) = judge(observations(4, clocks=clocks(0, 3, 3, 3)))
    assert finding.subject.host == "h0"


def test_a_lost_host_is_reported():
    (finding, *_) = judge(observations(2, lost={1: "its connection was lost"}))
    assert (finding.cause, finding.level, finding.subject.host) == (
        "network-fabric-fault",
        Level.ERROR,
        "h1",
    )
    assert (
        finding.message
        == "h1 (node 1) reached h0:29500 and then stopped responding: its connection was lost"
    )


def test_unobserved_facts_are_listed():
    listed = list(unobserved(observations(2, unmeasured=3)))
    assert "3 pairs" in listed[0]
    assert "no report" in listed[1]


def test_interfaces_are_in_the_evidence():
    own = PublishedAddress(library="gloo", address="127.0.0.1", interface="lo")
    (finding,) = judge(
        with_peer(
            observations(2),
            1,
            published=(own,),
            interfaces=(InterfaceAddress("eth7", "10.0.0.7", 1500),),
        )
    )
    assert "eth7 10.0.0.7" in finding.evidence[0].text


def test_a_different_mtu():
    (finding,) = judge(
        with_peer(observations(3), 2, interfaces=(InterfaceAddress("eth0", "10.0.0.2", 9000),))
    )
    assert (finding.cause, finding.level) == ("mtu-black-hole", Level.WARNING)
    assert (
        finding.message
        == "MTU differs between hosts: 9000 bytes on h2 (node 2), 1500 bytes on the other 2"
    )


def test_one_slow_host_of_three_is_reported():
    assert summaries(observations(3, links=(link(0, 1), link(0, 2, 1e8), link(1, 2, 1e8)))) == [
        ("slow-link", "warning", "h2")
    ]


def test_missing_nodes_have_scheduler_names():
    (finding,) = judge(with_peer(observations(1, nodes=2), 0, names=("gpu-01", "gpu-02")))
    assert finding.message.startswith("node 1 (gpu-02) of 2 did not reach")


def test_a_firewall_on_all_hosts_is_one_finding():
    observed = observations(
        5,
        failed_probes=tuple(
            probe_result(a, b, ConnectOutcome.TIMED_OUT)
            for a in range(5)
            for b in range(5)
            if a != b
        ),
    )
    (finding,) = judge(observed)
    assert finding.message.startswith(
        "a firewall drops packets between all 5 hosts (20 directed pairs)"
    )
    assert (finding.subject.host, finding.subject.link) == (None, None)
    assert failing_hosts(observed, (finding,)) == {
        f"h{number} (node {number})" for number in range(5)
    }


def test_unknown_purposes_of_probes_are_ignored():
    assert (
        judge(
            observations(
                2, failed_probes=(probe_result(1, 0, ConnectOutcome.TIMED_OUT, purpose="teleport"),)
            )
        )
        == ()
    )


def test_remedies_of_a_link_name_its_interface_and_the_other_host():
    links = tuple(
        link(a, b, 1e8 if (a, b) == (0, 1) else 1e9) for a in range(4) for b in range(a + 1, 4)
    )
    (finding,) = judge(observations(4, links=links))
    commands = [remedy.command for remedy in finding.remedies if remedy.command]
    assert "ethtool eth0 | grep -i speed; ip -s link show eth0" in commands
    assert "iperf3 -c h1 -P 8" in commands
