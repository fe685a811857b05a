"""Ports that are taken, or may be."""

import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks.ports import Holder, Ports
from holdfast.findings import Unknown
from tests.rules.machine.asked import found

FREE = {"wanted": (29500, 29510), "held": (), "ephemeral": (32768, 60999)}
NODE = Place(endpoint=("10.1.0.5", 29505))


def held(port, *, listens=True):
    return {"held": (Holder(port=port, listens=listens, pid=7, program="python"),)}


@pytest.mark.parametrize(
    ("change", "place", "expected"),
    [
        ({}, Place(), None),
        (held(29500), Place(), ("warning", "held by python (pid 7): it is the one that launchers take")),
        (held(29500), NODE, ("note", "a job that is told this port will fail")),
        (held(29505) | {"endpoint": 29505}, NODE, ("error", "the rendezvous of this job cannot begin there")),
        (held(29505, listens=False) | {"endpoint": 29505}, NODE, ("warning", "for a connection")),
        ({"ephemeral": (1024, 65535)}, Place(), ("note", "port 29500 is among those")),
        ({"ephemeral": (1024, 65535), "endpoint": 29505}, NODE, ("note", "port 29505 is among those")),
        ({"ephemeral": (1024, 65535), "reserved": "8080,29500-29510"}, Place(), None),
        ({"ephemeral": (50000, 50999)}, Place(), ("warning", "only 1000 ports")),
        ({"held": Unknown("x"), "ephemeral": Unknown("x")}, Place(), None),
    ],
)
def test_ports(change, place, expected):
    claims = found("ports", place, Ports(**(FREE | change)))
    assert [claim[:2] for claim in claims] == ([] if expected is None else [(expected[0], "port-in-use")])
    assert all(expected[1] in claim[2] for claim in claims)
