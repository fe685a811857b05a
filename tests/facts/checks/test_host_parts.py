"""The clock, NUMA nodes, huge pages and containers: here, and recorded."""

import os
from pathlib import Path

import pytest

from holdfast.facts.checks import Place, clock, container, huge_pages, numa, unknowns
from holdfast.findings import Unknown

from .test_host_limits import MEMINFO
from .trees import host

SOURCES = "/sys/devices/system/clocksource/clocksource0"


def test_the_clock_here():
    seen = clock.look(Place())
    assert isinstance(seen.synchronized, bool)
    source = Path(f"{SOURCES}/current_clocksource")
    if source.exists():
        assert seen.hardware == source.read_text().strip()
    assert seen.facts()[0].origin == "adjtimex"


def test_a_recorded_clock(tmp_path):
    files = {f"{SOURCES}/current_clocksource": "hpet\n", f"{SOURCES}/available_clocksource": "tsc hpet acpi_pm \n"}
    seen = clock.look(host(tmp_path, files))
    assert (seen.hardware, seen.others) == ("hpet", ("tsc", "acpi_pm"))
    assert isinstance(seen.synchronized, Unknown)


# As `chronyc -c tracking` of chrony 4 prints it (chrony.com, chronyc(1): the report, comma separated).
_LINE = b"A29FC87B,{server},3,1763762423.4,-0.000012,-0.0000131,0.00004,-9.1,0.002,0.04,0.012,0.0003,64.5,{leap}\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (_LINE.replace(b"{server}", b"162.159.200.123").replace(b"{leap}", b"Normal"), ("162.159.200.123", -1.2e-5)),
        (_LINE.replace(b"{server}", b"").replace(b"{leap}", b"Not synchronised"), None),
        (b"506 Cannot talk to daemon\n", None),
        (b"a,b,c,d,e,f,g,h,i,j,k,l,m,n", None),
        (Unknown("chronyc is not installed here"), None),
    ],
)
def test_what_chrony_says(answer, expected):
    assert clock.tracking(answer) == expected


def test_nodes_here_and_recorded(tmp_path):
    here = numa.look(Place())
    assert here.absent or here.reached
    files = {f"/sys/devices/system/node/node{number}/{name}": content for number in (0, 1) for name, content in (
        ("cpulist", f"{number * 8}-{number * 8 + 7}\n"),
        ("meminfo", f"Node {number} MemTotal: 1048576 kB\nNode {number} MemFree: {number * 524288} kB\n"),
    )}  # fmt: skip
    files |= {"/proc/self/status": "Cpus_allowed_list:\t8-11\nMems_allowed_list:\t0-1\n",
              "/proc/sys/vm/zone_reclaim_mode": "1\n"}  # fmt: skip
    seen = numa.look(host(tmp_path, files))
    assert [(node.number, node.total, node.free) for node in seen.nodes] == [(0, 1 << 30, 0), (1, 1 << 30, 1 << 29)]
    assert [node.number for node in seen.reached] == [1]
    assert seen.reclaim == 1


def test_a_kernel_without_nodes(tmp_path):
    assert numa.look(host(tmp_path, {"/sys/devices/system/cpu/online": "0\n"})).absent
    assert unknowns(numa.look(host(tmp_path / "b"))) == ("/sys/devices/system/node is not there",)


def test_huge_pages(tmp_path):
    folder = "/sys/kernel/mm/transparent_hugepage"
    files = {"/proc/meminfo": MEMINFO, f"{folder}/enabled": "[always] madvise never\n",
             f"{folder}/defrag": "always defer [defer+madvise] madvise never\n"}  # fmt: skip
    seen = huge_pages.look(host(tmp_path, files))
    assert (seen.reserved, seen.idle) == (1024 * 2 << 20, 1000 * 2 << 20)
    assert (seen.enabled, seen.defrag) == ("always", "defer+madvise")
    assert huge_pages.look(host(tmp_path / "b", {"/proc/meminfo": "MemTotal: 4 kB\n"})).reserved == 0
    assert huge_pages.look(Place()).facts()


def test_a_container(tmp_path):
    files = {"/.dockerenv": "", "/proc/self/status": "CapEff:\t00000000a80425fb\nSeccomp:\t2\n",
             "/proc/sys/kernel/yama/ptrace_scope": "1\n", "/proc/1/cgroup": "0::/\n"}  # fmt: skip
    seen = container.look(host(tmp_path, files))
    assert (seen.name, seen.capabilities, seen.seccomp, seen.ptrace_scope) == ("Docker", (), "a filter", 1)
    assert container.look(host(tmp_path / "b", {"/proc/1/cgroup": "0::/kubepods/pod7\n"})).name == "kubepods"
    assert container.look(Place()).root is (os.geteuid() == 0)
