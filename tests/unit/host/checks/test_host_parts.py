"""The clock, NUMA nodes, huge pages and containers: here, and recorded."""

import os
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext, unknown_reasons
from holdfast.host.checks.devices import numa
from holdfast.host.checks.system import clock, container, huge_pages

from .test_host_limits import MEMINFO
from .trees import host

SOURCES = "/sys/devices/system/clocksource/clocksource0"


def test_the_clock_of_this_host():
    result = clock.inspect(CheckContext())
    assert isinstance(result.synchronized, bool)
    source = Path(f"{SOURCES}/current_clocksource")
    if source.exists():
        assert result.source == source.read_text().strip()
    assert result.facts()[0].origin == "adjtimex"


def test_a_recorded_clock(tmp_path):
    files = {
        f"{SOURCES}/current_clocksource": "hpet\n",
        f"{SOURCES}/available_clocksource": "tsc hpet acpi_pm \n",
    }
    result = clock.inspect(host(tmp_path, files))
    assert (result.source, result.other_sources) == ("hpet", ("tsc", "acpi_pm"))
    assert isinstance(result.synchronized, Unknown)


# Format of `chronyc -c tracking` of chrony 4 (chrony.com, chronyc(1): the report, comma separated).
_LINE = b"A29FC87B,{server},3,1763762423.4,-0.000012,-0.0000131,0.00004,-9.1,0.002,0.04,0.012,0.0003,64.5,{leap}\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            _LINE.replace(b"{server}", b"162.159.200.123").replace(b"{leap}", b"Normal"),
            ("162.159.200.123", -1.2e-5),
        ),
        (_LINE.replace(b"{server}", b"").replace(b"{leap}", b"Not synchronised"), None),
        (b"506 Cannot talk to daemon\n", None),
        (b"a,b,c,d,e,f,g,h,i,j,k,l,m,n", None),
        (Unknown("chronyc is not installed"), None),
    ],
)
def test_chrony_output(answer, expected):
    assert clock.parse_chrony_tracking(answer) == expected


def test_nodes_here_and_recorded(tmp_path):
    here = numa.inspect(CheckContext())
    assert here.absent or here.usable_nodes
    files = {
        f"/sys/devices/system/node/node{number}/{name}": content
        for number in (0, 1)
        for name, content in (
            ("cpulist", f"{number * 8}-{number * 8 + 7}\n"),
            (
                "meminfo",
                f"Node {number} MemTotal: 1048576 kB\nNode {number} MemFree: {number * 524288} kB\n",
            ),
        )
    }
    files |= {
        "/proc/self/status": "Cpus_allowed_list:\t8-11\nMems_allowed_list:\t0-1\n",
        "/proc/sys/vm/zone_reclaim_mode": "1\n",
    }
    result = numa.inspect(host(tmp_path, files))
    assert [(node.number, node.total, node.free) for node in result.nodes] == [
        (0, 1 << 30, 0),
        (1, 1 << 30, 1 << 29),
    ]
    assert [node.number for node in result.usable_nodes] == [1]
    assert result.reclaim == 1


def test_a_kernel_without_nodes(tmp_path):
    assert numa.inspect(host(tmp_path, {"/sys/devices/system/cpu/online": "0\n"})).absent
    assert unknown_reasons(numa.inspect(host(tmp_path / "b"))) == (
        "/sys/devices/system/node does not exist",
    )


def test_huge_pages(tmp_path):
    folder = "/sys/kernel/mm/transparent_hugepage"
    files = {
        "/proc/meminfo": MEMINFO,
        f"{folder}/enabled": "[always] madvise never\n",
        f"{folder}/defrag": "always defer [defer+madvise] madvise never\n",
    }
    result = huge_pages.inspect(host(tmp_path, files))
    assert (result.reserved, result.idle) == (1024 * 2 << 20, 1000 * 2 << 20)
    assert (result.enabled, result.defrag) == ("always", "defer+madvise")
    assert (
        huge_pages.inspect(host(tmp_path / "b", {"/proc/meminfo": "MemTotal: 4 kB\n"})).reserved
        == 0
    )
    assert huge_pages.inspect(CheckContext()).facts()


def test_a_container(tmp_path):
    files = {
        "/.dockerenv": "",
        "/proc/self/status": "CapEff:\t00000000a80425fb\nSeccomp:\t2\n",
        "/proc/sys/kernel/yama/ptrace_scope": "1\n",
        "/proc/1/cgroup": "0::/\n",
    }
    result = container.inspect(host(tmp_path, files))
    assert (result.name, result.capabilities, result.seccomp, result.ptrace_scope) == (
        "Docker",
        (),
        "filter",
        1,
    )
    assert (
        container.inspect(host(tmp_path / "b", {"/proc/1/cgroup": "0::/kubepods/pod7\n"})).name
        == "kubepods"
    )
    assert container.inspect(CheckContext()).root is (os.geteuid() == 0)
