"""Causes of a peer not reaching the endpoint."""

import pytest

from holdfast.core.findings import Unknown
from holdfast.preflight.rendezvous import ConnectAttempt, ConnectOutcome, ProtocolMismatch
from holdfast.preflight.rendezvous_rules import judge_unreached
from tests.unit.preflight.rendezvous_rules.observed_hosts import access, peer

WHY = Unknown("no leader was reached within 10 s")


def judge(access_of_peer):
    (finding,) = judge_unreached(peer(1, 2), access_of_peer, WHY, 10.0)
    return finding


@pytest.mark.parametrize(
    ("outcome", "side", "cause", "word"),
    [
        (
            ConnectOutcome.TIMED_OUT,
            ConnectOutcome.TIMED_OUT,
            "firewall-blocked-ports",
            "or that host is down; if it is up, it reports h1 (node 1) as missing",
        ),
        (
            ConnectOutcome.TIMED_OUT,
            ConnectOutcome.REFUSED,
            "firewall-blocked-ports",
            "the host answers on other ports",
        ),
        (ConnectOutcome.REJECTED, ConnectOutcome.REJECTED, "firewall-blocked-ports", "rejects"),
        (
            ConnectOutcome.REFUSED,
            ConnectOutcome.REFUSED,
            "master-unreachable",
            "node 0 did not start there",
        ),
        (
            ConnectOutcome.NO_HOST,
            ConnectOutcome.NO_HOST,
            "master-unreachable",
            "the address is unused",
        ),
        (ConnectOutcome.NO_ROUTE, ConnectOutcome.NO_ROUTE, "master-unreachable", "no route"),
        (ConnectOutcome.FOREIGN_SERVICE, ConnectOutcome.REFUSED, "port-in-use", "another service"),
        (
            ConnectOutcome.INCOMPATIBLE,
            ConnectOutcome.INCOMPATIBLE,
            "port-in-use",
            "another `holdfast check`",
        ),
        (ConnectOutcome.FAILED, ConnectOutcome.FAILED, "master-unreachable", "cannot connect"),
        (ConnectOutcome.OPEN, ConnectOutcome.OPEN, "network-fabric-fault", "lost the connection"),
    ],
)
def test_every_outcome_has_its_cause(outcome, side, cause, word):
    finding = judge(access(outcome, side))
    assert finding.cause == cause
    assert word in finding.message
    assert finding.subject.host == "h1"
    assert len(finding.evidence) >= 3


def test_the_sender_of_a_rejection_is_reported():
    other = ConnectAttempt(
        address="10.0.0.0", port=29500, outcome=ConnectOutcome.REJECTED, by="10.0.9.9"
    )
    assert "10.0.9.9" in judge(access(main=other)).message
    own = ConnectAttempt(
        address="10.0.0.0", port=29500, outcome=ConnectOutcome.REJECTED, by="10.0.0.1"
    )
    assert "this host's own" in judge(access(main=own)).message


def test_an_unresolvable_endpoint():
    finding = judge(
        access(addresses=Unknown("the resolver did not answer within 3 s"), main=None, side=())
    )
    assert finding.cause == "hostname-resolution"
    assert "h0 does not resolve on h1 (node 1): the resolver did not answer" in finding.message


def test_loopback():
    home = access(
        addresses=("127.0.0.1",),
        main=ConnectAttempt(address="127.0.0.1", port=29500, outcome=ConnectOutcome.REFUSED),
    )
    assert "is a loopback address" in judge(home).message


def test_incompatible_versions():
    (finding,) = judge_unreached(
        peer(1, 2),
        access(ConnectOutcome.OPEN),
        ProtocolMismatch("its result cannot be decoded", "9.9"),
        10.0,
    )
    assert finding.cause == "launch-arguments-differ"
    assert finding.message == (
        "h1 (node 1) has holdfast 1, and the leader at h0:29500 has 9.9: these versions are incompatible"
    )


def test_different_commands():
    (finding,) = judge_unreached(
        peer(1, 2),
        access(ConnectOutcome.OPEN),
        ProtocolMismatch("its result cannot be decoded", "1"),
        10.0,
    )
    assert "run different commands, for example `--connect` on one only" in finding.message
