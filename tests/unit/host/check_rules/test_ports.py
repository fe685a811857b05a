"""Findings about ports that are in use, or may be."""

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.ports import PortHolder, PortsResult
from tests.unit.host.check_rules.findings_of import findings_of

FREE = {"wanted": (29500, 29510), "holders": (), "ephemeral": (32768, 60999)}
NODE = CheckContext(endpoint=("10.1.0.5", 29505))


def in_use(port, *, listens=True):
    return {"holders": (PortHolder(port=port, listens=listens, pid=7, program="python"),)}


@pytest.mark.parametrize(
    ("change", "context", "expected"),
    [
        ({}, CheckContext(), None),
        (
            in_use(29500),
            CheckContext(),
            ("warning", "in use by python (pid 7): it is the default port of launchers"),
        ),
        (in_use(29500), NODE, ("note", "a job that uses this port fails")),
        (
            in_use(29505) | {"endpoint": 29505},
            NODE,
            ("error", "the rendezvous of this job cannot bind it"),
        ),
        (in_use(29505, listens=False) | {"endpoint": 29505}, NODE, ("warning", "for a connection")),
        (
            {"ephemeral": (1024, 65535)},
            CheckContext(),
            ("note", "port 29500 is in the ephemeral range"),
        ),
        (
            {"ephemeral": (1024, 65535), "endpoint": 29505},
            NODE,
            ("note", "port 29505 is in the ephemeral range"),
        ),
        ({"ephemeral": (1024, 65535), "reserved": "8080,29500-29510"}, CheckContext(), None),
        ({"ephemeral": (50000, 50999)}, CheckContext(), ("warning", "only 1000 ephemeral ports")),
        ({"holders": Unknown("x"), "ephemeral": Unknown("x")}, CheckContext(), None),
    ],
)
def test_ports(change, context, expected):
    findings = findings_of("ports", context, PortsResult(**(FREE | change)))
    assert [finding[:2] for finding in findings] == (
        [] if expected is None else [(expected[0], "port-in-use")]
    )
    assert all(expected[1] in finding[2] for finding in findings)
