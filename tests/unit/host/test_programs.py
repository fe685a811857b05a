"""Run system programs with limits on time and output; missing results are reported with a reason."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from holdfast.core.findings import Unknown
from holdfast.host import machine_report, programs


def test_output_of_a_program():
    assert programs.run_program([sys.executable, "-c", "print('answer')"]) == b"answer\n"


def test_a_missing_program_is_reported():
    answer = programs.run_program(["holdfast-no-such-program"])
    assert isinstance(answer, programs.NotInstalled)
    assert "not installed" in answer.why


def test_output_of_a_failed_program_is_quoted():
    answer = programs.run_program([sys.executable, "-c", "raise SystemExit('driver mismatch')"])
    assert isinstance(answer, Unknown)
    assert "driver mismatch" in answer.why


def test_a_hanging_program_is_killed():
    start = time.monotonic()
    answer = programs.run_program(
        [sys.executable, "-c", "import time; time.sleep(60)"], limit_s=0.3
    )
    assert isinstance(answer, Unknown)
    assert "0.3 s" in answer.why
    assert time.monotonic() - start < 10


def test_endless_output_is_truncated(monkeypatch):
    monkeypatch.setattr(programs, "MAX_OUTPUT_BYTES", 1000)
    assert programs.run_program([sys.executable, "-c", "print('x' * 100000)"]) == b"x" * 1000


def test_interfaces_and_adapters_from_sysfs(tmp_path):
    files = {
        "class/net/ib0/operstate": "up",
        "class/net/ib0/speed": "400000",
        "class/net/ib0/mtu": "4092",
        "class/net/ib0/statistics/rx_errors": "7",
        "class/net/ib0/statistics/tx_errors": "0",
        "class/infiniband/mlx5_0/hca_type": "MT4129",
        "class/infiniband/mlx5_0/fw_ver": "28.39.1002",
        "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "class/infiniband/mlx5_0/ports/1/counters/link_downed": "3",
        "devices/system/node/node1/cpulist": "32-63",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    (net,) = machine_report.interfaces(tmp_path)
    assert net.text == "interface ib0: up, 400000 Mbit/s, mtu 4092, rx_errors 7"
    (port,) = machine_report.infiniband(tmp_path)
    assert port.text.startswith(
        "InfiniBand mlx5_0 port 1: MT4129 28.39.1002, 4: ACTIVE, 400 Gb/sec (4X NDR)"
    )
    assert "link_downed 3" in port.text
    (node,) = machine_report.nodes(tmp_path)
    assert node.text == "NUMA node1: CPUs 32-63"


def test_missing_adapters_are_reported(tmp_path):
    (none,) = machine_report.infiniband(tmp_path)
    assert "no adapter" in none.text


def test_limits_include_the_number_of_open_files():
    assert any(fact.text.startswith("limit nofile: ") for fact in machine_report.limits())


def test_kernel_messages_or_the_reason_for_their_absence(monkeypatch):
    monkeypatch.setattr(
        programs, "run_program", lambda _: Unknown("dmesg ended with status 1: not permitted")
    )
    answer = machine_report.kernel_messages()
    assert isinstance(answer, Unknown)
    assert "not permitted" in answer.why
    monkeypatch.setattr(programs, "run_program", lambda _: b"1\n2\n3\n")
    assert machine_report.kernel_messages(lines=2) == b"2\n3\n"


def test_kernel_messages_before_the_run_are_ignored(monkeypatch):
    log = b"2026-01-01T10:00:00,5+00:00 old\n continued\n2026-01-01T12:00:00,5+00:00 new\n continued\n"
    monkeypatch.setattr(programs, "run_program", lambda _: log)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    assert machine_report.kernel_messages(noon) == b"2026-01-01T12:00:00,5+00:00 new\n continued\n"
    assert isinstance(machine_report.kernel_messages(noon + 60), Unknown)
