"""Limits, memory, swap, processors and tasks: what this host says, and what recorded ones say."""

import os
import resource

from holdfast.facts.checks import Place, limits, memory, processors, swap, tasks, unknowns
from holdfast.findings import Unknown

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
    "/proc/self/cgroup": "0::/job.slice/step\n", "/sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
    f"{GROUP}/memory.max": "34359738368\n", f"{GROUP}/step/memory.max": "max\n",
    f"{GROUP}/memory.current": "10737418240\n", f"{GROUP}/memory.stat": "anon 5\ninactive_file 2147483648\n",
    f"{GROUP}/step/memory.current": "5368709120\n", f"{GROUP}/step/memory.stat": "anon 5\ninactive_file 0\n",
    f"{GROUP}/step/memory.events": "low 0\noom 3\noom_kill 2\n",
    f"{GROUP}/step/cpu.max": "max 100000\n", f"{GROUP}/cpu.max": "400000 100000\n",
    f"{GROUP}/cpu.stat": "nr_periods 200\nnr_throttled 50\n",
    f"{GROUP}/pids.max": "1000\n", f"{GROUP}/pids.current": "940\n",
    f"{GROUP}/step/pids.max": "max\n", f"{GROUP}/step/pids.current": "30\n",
}  # fmt: skip


def test_limits_of_this_process():
    seen = limits.look(Place())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    assert (seen.files.soft, seen.files.hard) == tuple(None if end == unlimited else end for end in (soft, hard))
    assert unknowns(seen) == ()


def test_recorded_limits(tmp_path):
    seen = limits.look(host(tmp_path, {"/proc/self/limits": LIMITS, "/sys/class/infiniband/mlx5_0/node_type": "1: CA"}))
    assert seen.files == limits.Limit(1024, 1048576)
    assert seen.stack == limits.Limit(8388608, None)
    assert seen.rdma
    assert [fact.text for fact in seen.facts()][:2] == ["open files: 1024 (at most 1048576)", "locked memory: 64 KiB"]


def test_a_host_without_limits(tmp_path):
    seen = limits.look(host(tmp_path))
    assert isinstance(seen.files, Unknown)
    assert not seen.rdma


def test_memory_here():
    seen = memory.look(Place())
    assert seen.total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < seen.room <= seen.whole <= seen.total


def test_recorded_memory(tmp_path):
    files = {"/proc/meminfo": MEMINFO, "/proc/sys/vm/overcommit_memory": "2\n"} | CGROUP
    seen = memory.look(host(tmp_path, files))
    assert seen.total == 263842000 * 1024
    assert (seen.limit, seen.used, seen.kills) == (32 * GIB, 8 * GIB, 2)  # the limit of the group around it counts
    assert (seen.room, seen.whole) == (24 * GIB, 32 * GIB)
    assert (seen.promised, seen.promisable) == (99000000 * 1024, 100000000 * 1024)
    assert [fact.text for fact in seen.facts()][1] == "limit of the control group: 32.0 GiB, 8.0 GiB in use"


def test_memory_that_is_not_told(tmp_path):
    seen = memory.look(host(tmp_path, {"/proc/meminfo": "MemTotal: many kB\n"}))
    assert seen.total == Unknown("/proc/meminfo has no MemTotal")
    assert seen.room is None


def test_recorded_swap(tmp_path):
    files = {"/proc/meminfo": MEMINFO, "/proc/pressure/memory": "some avg10=0.00 avg60=12.50 avg300=0.50 total=4\n"}
    seen = swap.look(host(tmp_path, files))
    assert (seen.size, seen.used, seen.waiting) == (8388604 * 1024, 2 * GIB, 0.125)
    assert isinstance(swap.look(Place()).size, int)


def test_processors_here():
    seen = processors.look(Place())
    assert processors.numbers(seen.usable) == sorted(os.sched_getaffinity(0))
    assert len(processors.numbers(seen.online)) == os.cpu_count()
    assert 0 < seen.cores <= os.cpu_count()


def test_recorded_processors(tmp_path):
    files = {"/sys/devices/system/cpu/online": "0-63\n", "/proc/self/status": "Cpus_allowed_list:\t0-15,32-47\n",
             "/proc/loadavg": "70.50 60.00 50.00 9/1200 4711\n",
             "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"} | CGROUP  # fmt: skip
    seen = processors.look(host(tmp_path, files))
    assert (seen.quota, seen.throttled, seen.load, seen.cores) == (4.0, 0.25, 70.5, 4.0)
    assert len(processors.numbers(seen.usable)) == 32
    assert seen.facts()[0].text == "processors: 64 in the host, 32 for this process (0-15,32-47)"


def test_tasks(tmp_path):
    files = {"/proc/loadavg": "1 1 1 9/1200 4711\n", "/proc/sys/kernel/threads-max": "96365\n",
             "/proc/sys/kernel/pid_max": "32768\n"} | CGROUP  # fmt: skip
    seen = tasks.look(host(tmp_path, files))
    assert (seen.running, seen.most, seen.limit, seen.used, seen.room) == (1200, 32768, 1000, 940, 60)
    assert tasks.look(Place()).running > 1
    assert isinstance(tasks.look(host(tmp_path / "b")).running, Unknown)
