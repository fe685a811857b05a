"""Names that mean what the other hosts do not mean, by the resolver and by /etc/hosts."""

import pytest
from msgspec.structs import replace

from holdfast.facts.checks import Place
from holdfast.facts.checks.names import Names
from holdfast.facts.resolver import Answer
from tests.facts.checks.trees import host, network
from tests.rules.machine.asked import found

SOUND = Names(
    own=Answer(asked="node7", addresses=("10.1.0.5",)),
    published=Answer(asked="node7", addresses=("10.1.0.5",)),
    addresses=("127.0.0.1", "10.1.0.5"),
)
NO_NAME = Answer(asked="node7", trouble="there is no such name")
GLOO = Place(environ={"GLOO_SOCKET_IFNAME": "eth0"})


def published(name, *addresses):
    return replace(SOUND, published=Answer(asked=name, addresses=addresses, trouble="" if addresses else "none"))


@pytest.mark.parametrize(
    ("seen", "level", "words"),
    [
        (replace(SOUND, endpoint=NO_NAME), "error", "the endpoint's name node7 means nothing here (there is no such"),
        (replace(SOUND, endpoint=Answer(asked="n", addresses=("fd00::1",))), "error", "IPv6 addresses alone"),
        (replace(SOUND, own=NO_NAME), "warning", "gloo publishes its loopback address"),
        (replace(SOUND, own=Answer(asked="node7", addresses=("127.0.0.2",))), "warning", "connect to themselves"),
        (replace(SOUND, own=Answer(asked="node7", addresses=("10.1.0.9",))), "warning", "no address of this host"),
        (published("localhost.localdomain", "127.0.0.1"), "warning", "calls itself localhost.localdomain"),
        (published("node7.cluster"), "warning", "calls itself node7.cluster, which means nothing here"),
        (replace(SOUND, own=replace(SOUND.own, elapsed_s=2.5)), "warning", "the resolver took 2.5 s for node7"),
    ],
)
def test_names(seen, level, words):
    ((told, cause, message),) = found("names", Place(), seen)
    assert (told, cause) == (level, "hostname-resolution")
    assert words in message


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        (Place(), SOUND),
        (GLOO, replace(SOUND, own=NO_NAME)),
        (Place(), replace(SOUND, endpoint=Answer(asked="n", addresses=("fd00::1", "10.1.0.9")))),
        (
            Place(),
            replace(SOUND, addresses=("fd00::5", "10.1.0.5"), endpoint=Answer(asked="n", addresses=("fd00::1",))),
        ),
        (Place(), replace(SOUND, in_file=True, own=Answer(asked="node7", addresses=("127.0.1.1",)))),
    ],
)
def test_names_that_are_right_or_told_elsewhere(place, seen):
    assert found("names", place, seen) == []


HOSTS = "127.0.0.1 localhost\n"


@pytest.mark.parametrize(
    ("hosts", "place", "expected"),
    [
        (HOSTS, {}, []),
        (HOSTS + "10.1.0.5 node7\n", {}, []),
        (HOSTS + "127.0.1.1 node7\n", {}, [("warning", "line 2 of /etc/hosts puts this host's own name node7")]),
        (HOSTS + "127.0.1.1 node7\n", {"endpoint": ("10.1.0.5", 1)}, [("warning", "puts this host's own name")]),
        (HOSTS + "127.0.1.1 node7\n", {"endpoint": ("10.1.0.6", 1)}, [("error", "connect to themselves")]),
        (HOSTS + "127.0.1.1 node7\n", {"endpoint": ("10.1.0.6", 1), "environ": {"GLOO_SOCKET_IFNAME": "eth0"}},
         [("warning", "puts this host's own name")]),
        (HOSTS + "127.0.1.1 node7\n10.1.0.6 node6\n", {"endpoint": ("node6", 1)}, [("error", "connect to themselves")]),
        (HOSTS + "10.1.0.9 node7\n", {}, [("warning", "no address of this host")]),
        (HOSTS + "10.1.0.5 node7\n10.2.0.5 node7\n", {}, [("note", "at 10.1.0.5 and at 10.2.0.5")]),
        (HOSTS + "127.0.0.1 master\n", {"endpoint": ("master", 1)}, [("warning", "puts the endpoint master at 127.0")]),
        (HOSTS + "10.1.0.300 node8\n", {}, [("note", "line 2 of /etc/hosts is no address with names")]),
        ("10.1.0.5 node7\n", {}, [("warning", "no line for localhost")]),
    ],
)  # fmt: skip
def test_the_file(tmp_path, hosts, place, expected):
    files = network({"lo": ("127.0.0.1/8", {}), "eth0": ("10.1.0.5/16", {})})
    tree = host(tmp_path, files | {"/etc/hosts": hosts, "/etc/hostname": "node7\n"}, **place)
    claims = found("hosts-file", tree)
    assert [claim[0] for claim in claims] == [level for level, _ in expected]
    assert all(words in claim[2] for claim, (_, words) in zip(claims, expected, strict=True))


def test_no_file(tmp_path):
    assert found("hosts-file", host(tmp_path)) == []
