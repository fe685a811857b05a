"""cgroup limits apply at every level: on real cgroups, if they may be created, and on recorded ones."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

from holdfast.core.findings import Unknown
from holdfast.host import cgroups
from holdfast.host.cgroups import CGROUPS, Cgroup

MIB = 1 << 20
BUSY = """
import sys, time
sys.stdin.readline()
end = time.monotonic() + 0.6
while time.monotonic() < end: pass
"""


def write(files):
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_the_tightest_quota_and_the_worst_throttling_count(tmp_path):
    for version, quota in (
        (2, {"cpu.max": "{0} 100000\n"}),
        (1, {"cpu.cfs_quota_us": "{0}\n", "cpu.cfs_period_us": "100000\n"}),
    ):
        top = tmp_path / str(version)
        none = "max" if version == 2 else "-1"
        for folder, cores, held in (
            ("", none, 0),
            ("a", "150000", 30),
            ("a/b", none, 0),
            ("a/b/c", "400000", 10),
        ):
            write({top / folder / name: form.format(cores) for name, form in quota.items()})
            write({top / folder / "cpu.stat": f"nr_periods 100\nnr_throttled {held}\n"})
        group = Cgroup(top / "a/b/c", top, version)
        assert cgroups.cpu_limit(group) == 1.5
        assert cgroups.cpu_throttled(group) == 0.3
        assert [each.folder.name for each in group.upwards()] == ["c", "b", "a", str(version)]


def test_a_missing_quota_is_none(tmp_path):
    group = Cgroup(tmp_path / "a", tmp_path, 2)
    assert cgroups.cpu_limit(group) == Unknown(f"no CPU quota in {tmp_path}/a or its parents")
    assert cgroups.cpu_throttled(group) is None
    write(
        {
            tmp_path / "a/cpu.stat": "nr_periods many\nnr_throttled 3\n",
            tmp_path / "a/cpu.max": "1 0\n",
        }
    )
    assert isinstance(cgroups.cpu_limit(group), Unknown)
    assert cgroups.cpu_throttled(group) is None


def test_the_memory_limit_with_the_least_free_memory_counts_not_the_lowest(tmp_path):
    """The outer group has a higher limit, but other steps have filled it."""
    for folder, limit, used, idle in (("a", 100, 98, 4), ("a/b", 50, 10, 0)):
        write({tmp_path / folder / "memory.max": f"{limit * MIB}\n"})
        write({tmp_path / folder / "memory.current": f"{used * MIB}\n"})
        write({tmp_path / folder / "memory.stat": f"inactive_file {idle * MIB}\n"})
    found = cgroups.memory_limit(Cgroup(tmp_path / "a/b", tmp_path, 2))
    assert (found.folder, found.limit_bytes, found.used_bytes) == (
        tmp_path / "a",
        100 * MIB,
        94 * MIB,
    )
    assert found.available_bytes == 6 * MIB


@contextmanager
def outer_and_inner():
    """Yield a cgroup limited to a twentieth of a CPU, and an unlimited one inside it."""
    version = 2 if (CGROUPS / "cgroup.controllers").exists() else 1
    outer = (CGROUPS if version == 2 else CGROUPS / "cpu") / f"holdfast-test-{os.getpid()}"
    try:
        (outer / "inner").mkdir(parents=True)
        if version == 2:
            (outer / "cpu.max").write_text("5000 100000")
        else:
            (outer / "cpu.cfs_quota_us").write_text("5000")
        yield outer / "inner"
    except OSError as error:
        pytest.skip(f"no cgroup can be created here: {error}")
    finally:
        for folder in (outer / "inner", outer):
            with suppress(OSError):
                folder.rmdir()


def test_the_quota_of_an_enclosing_cgroup_counts():
    with outer_and_inner() as inner:
        child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE)
        try:
            (inner / "cgroup.procs").write_text(str(child.pid))
            group = cgroups.cgroup_of(child.pid, "cpu")
            assert group.folder == inner
            assert cgroups.cpu_limit(group) == 0.05
            child.communicate(b"go\n", timeout=30)
            assert 0 < cgroups.cpu_throttled(group) <= 1
        finally:
            child.kill()
            child.wait()
            time.sleep(0.05)  # the kernel releases the group with a delay
