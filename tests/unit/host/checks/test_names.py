"""Name resolution by the real resolver and a recorded /etc/hosts.

A name server that does not answer: tests/process/test_check_host.py.
"""

import os
import socket

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network import hosts_file as file_check
from holdfast.host.checks.network.host_names import inspect
from holdfast.host.checks.network.resolver import (
    fully_qualified_name,
    read_hosts_file,
    resolve_name,
)

from .trees import host

HOSTS = "127.0.0.1 localhost\n# a comment\n\n127.0.1.1 node7.cluster node7 # Debian\n10.1.0.5 node8\nnonsense\n"
FILES = {"/etc/hosts": HOSTS, "/etc/hostname": "node7\n"}


def test_this_host_by_the_real_resolver():
    result = inspect(CheckContext(endpoint=("localhost", 1)))
    assert result.own.name == os.uname().nodename
    assert result.published.name == socket.getfqdn()
    assert "127.0.0.1" in result.endpoint.addresses


def test_an_address_is_not_resolved():
    assert resolve_name(CheckContext(), "10.0.0.1").addresses == ("10.0.0.1",)
    assert resolve_name(CheckContext(), "fe80::1%lo").addresses == ("fe80::1%lo",)


@pytest.mark.parametrize("name", ["", "a" * 300, "nul\0", "ü" * 80])
def test_invalid_names(name):
    lookup = resolve_name(CheckContext(), name)
    assert lookup.failure or lookup.addresses
    assert "\n" not in lookup.failure


def test_a_recorded_file(tmp_path):
    context = host(tmp_path, FILES, endpoint=("node8", 29500))
    result = inspect(context)
    assert result.own.addresses == ("127.0.1.1",)
    assert result.in_file
    assert result.published.name == "node7.cluster"
    assert result.endpoint.addresses == ("10.1.0.5",)
    assert resolve_name(context, "node9").is_known_absent
    assert fully_qualified_name(context, "node9") == "node9"


def test_the_lines_of_the_file(tmp_path):
    context = host(tmp_path, FILES)
    assert [(line.number, line.address, line.names) for line in read_hosts_file(context)] == [
        (1, "127.0.0.1", ("localhost",)),
        (4, "127.0.1.1", ("node7.cluster", "node7")),
        (5, "10.1.0.5", ("node8",)),
        (6, "nonsense", ()),
    ]
    result = file_check.inspect(context)
    assert [fact.origin for fact in result.facts()] == ["/etc/hosts", "/etc/hosts:4"]
    assert file_check.inspect(CheckContext()).name == os.uname().nodename


def test_a_host_without_the_file(tmp_path):
    result = inspect(host(tmp_path))
    assert result.own.failure.endswith("/etc/hosts is not there")
    assert isinstance(read_hosts_file(host(tmp_path)), Unknown)
