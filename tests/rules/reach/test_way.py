"""Why a copy did not get to the endpoint."""

import pytest

from holdfast.facts.reach import Attempt, Fate, NotUnderstood
from holdfast.findings import Unknown
from holdfast.rules.reach import alone
from tests.rules.reach.sets import approach, copy

WHY = Unknown("nobody who leads was reached within 10 s")


def told(way):
    (claim,) = alone(copy(1, 2), way, WHY, 10.0)
    return claim


@pytest.mark.parametrize(
    ("fate", "side", "cause", "word"),
    [
        (
            Fate.SILENT,
            Fate.SILENT,
            "firewall-blocked-ports",
            "or that host is down; if it is not, it says that h1 (node 1) never came",
        ),
        (Fate.SILENT, Fate.REFUSED, "firewall-blocked-ports", "while the host answers at other ports"),
        (Fate.REJECTED, Fate.REJECTED, "firewall-blocked-ports", "rejects"),
        (Fate.REFUSED, Fate.REFUSED, "master-unreachable", "node 0 did not start there"),
        (Fate.NOBODY, Fate.NOBODY, "master-unreachable", "the address is nobody's"),
        (Fate.NO_ROUTE, Fate.NO_ROUTE, "master-unreachable", "no route"),
        (Fate.FOREIGN, Fate.REFUSED, "port-in-use", "another service"),
        (Fate.STRANGER, Fate.STRANGER, "port-in-use", "another `holdfast check`"),
        (Fate.FAILED, Fate.FAILED, "master-unreachable", "cannot connect"),
        (Fate.OPEN, Fate.OPEN, "network-fabric-fault", "lost it again"),
    ],
)
def test_every_fate_has_its_cause(fate, side, cause, word):
    claim = told(approach(fate, side))
    assert claim.cause == cause
    assert word in claim.message
    assert claim.subject.host == "h1"
    assert len(claim.evidence) >= 3


def test_who_rejects_is_named_where_it_is_not_the_host_itself():
    other = Attempt(address="10.0.0.0", port=29500, fate=Fate.REJECTED, by="10.0.9.9")
    assert "10.0.9.9" in told(approach(main=other)).message
    own = Attempt(address="10.0.0.0", port=29500, fate=Fate.REJECTED, by="10.0.0.1")
    assert "this host's own" in told(approach(main=own)).message


def test_a_name_that_means_nothing():
    claim = told(approach(addresses=Unknown("the resolver did not answer within 3 s"), main=None, side=()))
    assert claim.cause == "hostname-resolution"
    assert "h0 does not resolve on h1 (node 1): the resolver did not answer" in claim.message


def test_loopback():
    home = approach(addresses=("127.0.0.1",), main=Attempt(address="127.0.0.1", port=29500, fate=Fate.REFUSED))
    assert "on every host that host itself" in told(home).message


def test_versions_that_do_not_understand_each_other():
    (claim,) = alone(copy(1, 2), approach(Fate.OPEN), NotUnderstood("what it tells cannot be read", "9.9"), 10.0)
    assert claim.cause == "launch-arguments-differ"
    assert claim.message == (
        "h1 (node 1) has holdfast 1, and whoever leads at h0:29500 has 9.9: they do not understand each other"
    )


def test_commands_that_differ():
    (claim,) = alone(copy(1, 2), approach(Fate.OPEN), NotUnderstood("what it tells cannot be read", "1"), 10.0)
    assert "started with different commands, such as `--connect` on one alone" in claim.message
