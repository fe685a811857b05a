"""Limits, memory, swap, CPUs and process limits: of this host, and of recorded ones."""

import os
import resource

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext, unknown_reasons
from holdfast.host.checks.system import limits, memory, process_limits, processors, swap

from .trees import host

GIB = 1 << 30
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             96365                96365                processes
Max open files            1024                 1048576              files
Max locked memory         65536                65536                bytes
"""
MEMINFO = """MemTotal:       263842000 kB
MemAvailable:   200000000 kB
SwapTotal:        8388604 kB
SwapFree:         6291452 kB
CommitLimit:    100000000 kB
Committed_AS:    99000000 kB
HugePages_Total:    1024
HugePages_Free:     1000
Hugepagesize:       2048 kB
"""
GROUP = "/sys/fs/cgroup/job.slice"
CGROUP = {
    "/proc/self/cgroup": "0::/job.slice/step\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
    f"{GROUP}/memory.max": "34359738368\n",
    f"{GROUP}/step/memory.max": "max\n",
    f"{GROUP}/memory.current": "10737418240\n",
    f"{GROUP}/memory.stat": "anon 5\ninactive_file 2147483648\n",
    f"{GROUP}/step/memory.current": "5368709120\n",
    f"{GROUP}/step/memory.stat": "anon 5\ninactive_file 0\n",
    f"{GROUP}/step/memory.events": "low 0\noom 3\noom_kill 2\n",
    f"{GROUP}/step/cpu.max": "max 100000\n",
    f"{GROUP}/cpu.max": "400000 100000\n",
    f"{GROUP}/cpu.stat": "nr_periods 200\nnr_throttled 50\n",
    f"{GROUP}/pids.max": "1000\n",
    f"{GROUP}/pids.current": "940\n",
    f"{GROUP}/step/pids.max": "max\n",
    f"{GROUP}/step/pids.current": "30\n",
}


def test_limits_of_this_process():
    result = limits.inspect(CheckContext())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    assert (result.files.soft, result.files.hard) == tuple(
        None if end == unlimited else end for end in (soft, hard)
    )
    assert unknown_reasons(result) == ()


def test_recorded_limits(tmp_path):
    result = limits.inspect(
        host(
            tmp_path,
            {"/proc/self/limits": LIMITS, "/sys/class/infiniband/mlx5_0/node_type": "1: CA"},
        )
    )
    assert result.files == limits.ResourceLimit(1024, 1048576)
    assert result.stack == limits.ResourceLimit(8388608, None)
    assert result.rdma
    assert [fact.text for fact in result.facts()][:2] == [
        "open-file limit (ulimit -n): 1024 (hard limit 1048576)",
        "locked-memory limit (ulimit -l): 64 KiB",
    ]


def test_a_host_without_limits(tmp_path):
    result = limits.inspect(host(tmp_path))
    assert isinstance(result.files, Unknown)
    assert not result.rdma


def test_memory_here():
    result = memory.inspect(CheckContext())
    assert result.total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < result.available_bytes <= result.limit_bytes <= result.total


def test_recorded_memory(tmp_path):
    files = {"/proc/meminfo": MEMINFO, "/proc/sys/vm/overcommit_memory": "2\n"} | CGROUP
    result = memory.inspect(host(tmp_path, files))
    assert result.total == 263842000 * 1024
    assert (result.limit, result.used, result.kills) == (
        32 * GIB,
        8 * GIB,
        2,
    )  # the limit of the enclosing cgroup counts
    assert (result.available_bytes, result.limit_bytes) == (24 * GIB, 32 * GIB)
    assert (result.committed, result.commit_limit) == (99000000 * 1024, 100000000 * 1024)
    assert [fact.text for fact in result.facts()][
        1
    ] == "cgroup memory limit: 32.0 GiB, 8.0 GiB in use"


def test_unreadable_memory_size(tmp_path):
    result = memory.inspect(host(tmp_path, {"/proc/meminfo": "MemTotal: many kB\n"}))
    assert result.total == Unknown("/proc/meminfo has no MemTotal")
    assert result.available_bytes is None


def test_recorded_swap(tmp_path):
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/pressure/memory": "some avg10=0.00 avg60=12.50 avg300=0.50 total=4\n",
    }
    result = swap.inspect(host(tmp_path, files))
    assert (result.size, result.used, result.stalled) == (8388604 * 1024, 2 * GIB, 0.125)
    assert isinstance(swap.inspect(CheckContext()).size, int)


def test_processors_here():
    result = processors.inspect(CheckContext())
    assert processors.parse_cpu_list(result.usable) == sorted(os.sched_getaffinity(0))
    assert len(processors.parse_cpu_list(result.online)) == os.cpu_count()
    assert 0 < result.cores <= os.cpu_count()


def test_recorded_processors(tmp_path):
    files = {
        "/sys/devices/system/cpu/online": "0-63\n",
        "/proc/self/status": "Cpus_allowed_list:\t0-15,32-47\n",
        "/proc/loadavg": "70.50 60.00 50.00 9/1200 4711\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    } | CGROUP
    result = processors.inspect(host(tmp_path, files))
    assert (result.quota, result.throttled, result.load, result.cores) == (4.0, 0.25, 70.5, 4.0)
    assert len(processors.parse_cpu_list(result.usable)) == 32
    assert result.facts()[0].text == "CPUs: 64 online, 32 usable by this process (0-15,32-47)"


def test_process_limits(tmp_path):
    files = {
        "/proc/loadavg": "1 1 1 9/1200 4711\n",
        "/proc/sys/kernel/threads-max": "96365\n",
        "/proc/sys/kernel/pid_max": "32768\n",
    } | CGROUP
    result = process_limits.inspect(host(tmp_path, files))
    assert (result.running, result.maximum, result.limit, result.used, result.remaining) == (
        1200,
        32768,
        1000,
        940,
        60,
    )
    assert process_limits.inspect(CheckContext()).running > 1
    assert isinstance(process_limits.inspect(host(tmp_path / "b")).running, Unknown)
