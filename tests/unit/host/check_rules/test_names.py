"""Findings about host names that resolve to unusable addresses, by the resolver and by /etc/hosts."""

import pytest
from msgspec.structs import replace

from holdfast.host.check_rules.network.host_names import judge
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.host_names import HostNamesResult
from holdfast.host.checks.network.resolver import NameLookup
from tests.unit.host.check_rules.findings_of import findings_of
from tests.unit.host.checks.trees import host, network

SOUND = HostNamesResult(
    own=NameLookup(name="node7", addresses=("10.1.0.5",)),
    published=NameLookup(name="node7", addresses=("10.1.0.5",)),
    interfaces={"127.0.0.1": "lo", "10.1.0.5": "ens5"},
)
NO_NAME = NameLookup(name="node7", failure="no such name")
GLOO = CheckContext(environ={"GLOO_SOCKET_IFNAME": "eth0"})


def published(name, *addresses):
    return replace(
        SOUND,
        published=NameLookup(name=name, addresses=addresses, failure="" if addresses else "none"),
    )


@pytest.mark.parametrize(
    ("result", "level", "words"),
    [
        (
            replace(SOUND, endpoint=NO_NAME),
            "error",
            "the endpoint node7 does not resolve (no such name)",
        ),
        (
            replace(SOUND, endpoint=NameLookup(name="n", addresses=("fd00::1",))),
            "error",
            "only IPv6 addresses",
        ),
        (replace(SOUND, own=NO_NAME), "warning", "gloo publishes its loopback address"),
        (
            replace(SOUND, own=NameLookup(name="node7", addresses=("127.0.0.2",))),
            "warning",
            "connect to themselves",
        ),
        (
            replace(SOUND, own=NameLookup(name="node7", addresses=("10.1.0.9",))),
            "warning",
            "not an address of this host",
        ),
        (
            published("localhost.localdomain", "127.0.0.1"),
            "warning",
            "the fully qualified name of this host is localhost.localdomain",
        ),
        (
            published("node7.cluster"),
            "warning",
            "the fully qualified name of this host, node7.cluster, does not resolve",
        ),
        (
            replace(SOUND, own=replace(SOUND.own, elapsed_s=2.5)),
            "warning",
            "resolving node7 took 2.5 s",
        ),
    ],
)
def test_names(result, level, words):
    ((actual, cause, message),) = findings_of("names", CheckContext(), result)
    assert (actual, cause) == (level, "hostname-resolution")
    assert words in message


@pytest.mark.parametrize(
    ("context", "result"),
    [
        (CheckContext(), SOUND),
        (GLOO, replace(SOUND, own=NO_NAME)),
        (
            CheckContext(),
            replace(SOUND, endpoint=NameLookup(name="n", addresses=("fd00::1", "10.1.0.9"))),
        ),
        (
            CheckContext(),
            replace(
                SOUND,
                interfaces={"fd00::5": "ens5", "10.1.0.5": "ens5"},
                endpoint=NameLookup(name="n", addresses=("fd00::1",)),
            ),
        ),
        (
            CheckContext(),
            replace(SOUND, in_file=True, own=NameLookup(name="node7", addresses=("127.0.1.1",))),
        ),
    ],
)
def test_names_without_a_finding(context, result):
    assert findings_of("names", context, result) == []


HOSTS = "127.0.0.1 localhost\n"


@pytest.mark.parametrize(
    ("hosts", "context", "expected"),
    [
        (HOSTS, {}, []),
        (HOSTS + "10.1.0.5 node7\n", {}, []),
        (
            HOSTS + "127.0.1.1 node7\n",
            {},
            [("warning", "line 2 of /etc/hosts maps this host's name node7")],
        ),
        (
            HOSTS + "127.0.1.1 node7\n",
            {"endpoint": ("10.1.0.5", 1)},
            [("warning", "maps this host's name")],
        ),
        (
            HOSTS + "127.0.1.1 node7\n",
            {"endpoint": ("10.1.0.6", 1)},
            [("error", "connect to themselves")],
        ),
        (
            HOSTS + "127.0.1.1 node7\n",
            {"endpoint": ("10.1.0.6", 1), "environ": {"GLOO_SOCKET_IFNAME": "eth0"}},
            [("warning", "maps this host's name")],
        ),
        (
            HOSTS + "127.0.1.1 node7\n10.1.0.6 node6\n",
            {"endpoint": ("node6", 1)},
            [("error", "connect to themselves")],
        ),
        (HOSTS + "10.1.0.9 node7\n", {}, [("warning", "not an address of this host")]),
        (HOSTS + "10.1.0.5 node7\n10.2.0.5 node7\n", {}, [("note", "to 10.1.0.5 and to 10.2.0.5")]),
        (
            HOSTS + "127.0.0.1 master\n",
            {"endpoint": ("master", 1)},
            [("warning", "maps the endpoint master to 127.0")],
        ),
        (
            HOSTS + "10.1.0.300 node8\n",
            {},
            [("note", "line 2 of /etc/hosts is not an address with names")],
        ),
        ("10.1.0.5 node7\n", {}, [("warning", "no line for localhost")]),
    ],
)
def test_the_file(tmp_path, hosts, context, expected):
    files = network({"lo": ("127.0.0.1/8", {}), "eth0": ("10.1.0.5/16", {})})
    tree = host(tmp_path, files | {"/etc/hosts": hosts, "/etc/hostname": "node7\n"}, **context)
    findings = findings_of("hosts-file", tree)
    assert [finding[0] for finding in findings] == [level for level, _ in expected]
    assert all(words in finding[2] for finding, (_, words) in zip(findings, expected, strict=True))


def test_no_file(tmp_path):
    assert findings_of("hosts-file", host(tmp_path)) == []


def test_remedies_contain_this_hosts_address_interface_and_endpoint():
    lookup = NameLookup(name="node7", addresses=("127.0.0.2",))
    (finding,) = judge(replace(SOUND, own=lookup), CheckContext(endpoint=("10.1.0.6", 4000)))
    assert finding.remedies[-1].command == (
        "export GLOO_SOCKET_IFNAME=ens5; "
        "holdfast run --local-addr 10.1.0.5 --rdzv-endpoint 10.1.0.6:4000 SCRIPT"
    )
