"""Names that are asked of the real resolver, and of a recorded /etc/hosts; e2e/test_check_host has a silent server."""

import os
import socket

import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks import hosts_file as file_check
from holdfast.facts.checks.names import look
from holdfast.facts.resolver import ask, full_name, hosts
from holdfast.findings import Unknown

from .trees import host

HOSTS = "127.0.0.1 localhost\n# a comment\n\n127.0.1.1 node7.cluster node7 # Debian\n10.1.0.5 node8\nnonsense\n"
FILES = {"/etc/hosts": HOSTS, "/etc/hostname": "node7\n"}


def test_this_host_by_the_real_resolver():
    seen = look(Place(endpoint=("localhost", 1)))
    assert seen.own.asked == os.uname().nodename
    assert seen.published.asked == socket.getfqdn()
    assert "127.0.0.1" in seen.endpoint.addresses


def test_an_address_is_not_asked_for():
    assert ask(Place(), "10.0.0.1").addresses == ("10.0.0.1",)
    assert ask(Place(), "fe80::1%lo").addresses == ("fe80::1%lo",)


@pytest.mark.parametrize("name", ["", "a" * 300, "nul\0", "ü" * 80])
def test_what_cannot_be_a_name(name):
    answer = ask(Place(), name)
    assert answer.trouble or answer.addresses
    assert "\n" not in answer.trouble


def test_a_recorded_file(tmp_path):
    place = host(tmp_path, FILES, endpoint=("node8", 29500))
    seen = look(place)
    assert seen.own.addresses == ("127.0.1.1",)
    assert seen.in_file
    assert seen.published.asked == "node7.cluster"
    assert seen.endpoint.addresses == ("10.1.0.5",)
    assert ask(place, "node9").is_known_absent
    assert full_name(place, "node9") == "node9"


def test_the_lines_of_the_file(tmp_path):
    place = host(tmp_path, FILES)
    assert [(line.number, line.address, line.names) for line in hosts(place)] == [
        (1, "127.0.0.1", ("localhost",)), (4, "127.0.1.1", ("node7.cluster", "node7")), (5, "10.1.0.5", ("node8",)),
        (6, "nonsense", ()),
    ]  # fmt: skip
    seen = file_check.look(place)
    assert [fact.origin for fact in seen.facts()] == ["/etc/hosts", "/etc/hosts:4"]
    assert file_check.look(Place()).name == os.uname().nodename


def test_a_host_without_the_file(tmp_path):
    seen = look(host(tmp_path))
    assert seen.own.trouble.endswith("/etc/hosts is not there")
    assert isinstance(hosts(host(tmp_path)), Unknown)
