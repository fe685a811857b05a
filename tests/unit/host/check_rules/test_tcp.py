"""TCP's limits, from /proc trees: buffers by the bandwidth-delay product, backlog, tracking."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Level, Unknown
from holdfast.host.check_rules.network import tcp as rule
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network import tcp
from holdfast.host.checks.network.tcp import TcpResult

CONTEXT = CheckContext()
HEALTHY = TcpResult(
    receive_bytes=32 << 20, send_bytes=32 << 20, backlog=4096, interface="ens1", speed_mbit=100_000
)


def messages(result):
    return [(each.level, each.message) for each in rule.judge(result, CONTEXT)]


def test_settings_are_read(tmp_path):
    for name, text in {
        "ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "ipv4/tcp_wmem": "4096 16384 4194304\n",
        "core/somaxconn": "128\n",
        "netfilter/nf_conntrack_count": "10\n",
        "netfilter/nf_conntrack_max": "65536\n",
    }.items():
        file = tmp_path / "proc/sys/net" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = tcp.inspect(CheckContext(root=str(tmp_path)))
    assert (found.receive_bytes, found.send_bytes, found.backlog) == (6291456, 4194304, 128)
    assert (found.tracked, found.max_tracked, found.interface) == (10, 65536, "")


def test_missing_and_hostile_files_are_unknown(tmp_path):
    found = tcp.inspect(CheckContext(root=str(tmp_path)))
    assert isinstance(found.receive_bytes, Unknown)
    assert isinstance(found.backlog, Unknown)
    assert messages(found) == []


def test_healthy_settings_have_no_findings():
    assert messages(HEALTHY) == []
    assert messages(replace(HEALTHY, receive_bytes=6 << 20, speed_mbit=10_000)) == []


def test_small_buffers_are_judged_by_the_bandwidth_delay_product():
    [(level, text)] = messages(replace(HEALTHY, send_bytes=4 << 20))
    assert level is Level.NOTE
    assert "4 MiB limit a connection over ens1 to 17 of 100 Gbit/s" in text
    assert "bandwidth-delay product is 11.9 MiB" in text
    [finding] = rule.judge(replace(HEALTHY, send_bytes=4 << 20), CONTEXT)
    assert "net.core.wmem_max=33554432" in finding.remedies[0].command
    assert messages(replace(HEALTHY, receive_bytes=32 << 20, send_bytes=32 << 20)) == []


@pytest.mark.parametrize(
    ("change", "level", "part"),
    [
        ({"backlog": 128}, Level.NOTE, "net.core.somaxconn is 128"),
        (
            {"tracked": 60_000, "max_tracked": 65_536},
            Level.WARNING,
            "tracks 60000 of at most 65536 connections",
        ),
    ],
)
def test_backlog_and_tracked_connections(change, level, part):
    [(found, text)] = messages(replace(HEALTHY, **change))
    assert found is level
    assert part in text
