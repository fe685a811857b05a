"""Whether the out-of-memory killer killed a process: recorded kernel counters and logs, and one real kill."""

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.host import cgroups, memory_kills
from holdfast.host.memory_kills import was_oom_killed

HOST_NAMESPACE = "pid:[4026531836]"
KILL = "6,11,99,-;Memory cgroup out of memory: Killed process {} (python) total-vm:1kB\n"


class Kernel:
    """Fake kernel: a /proc folder, a /sys/fs/cgroup folder, and a kernel log."""

    def __init__(self, root, version=2, namespace=HOST_NAMESPACE):
        self.proc, self.groups, self.log = root / "proc", root / "cgroup", root / "kmsg"
        self.version = version
        self.write(
            self.proc / "7/cgroup", "0::/job\n" if version == 2 else "4:memory,x:/job\n0::/\n"
        )
        (self.proc / "self/ns").mkdir(parents=True)
        (self.proc / "self/ns/pid").symlink_to(namespace)
        if version == 2:
            self.write(self.groups / "cgroup.controllers", "memory\n")
        self.count(0, 0)
        self.log_records = ["6,10,98,-;usb 1-1: Killed process 7 long ago\n"]

    @staticmethod
    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def count(self, in_group, on_host):
        folder = self.groups / ("job" if self.version == 2 else "memory/job")
        text = f"low 0\noom 1\noom_kill {in_group}\n"
        self.write(folder / ("memory.events" if self.version == 2 else "memory.oom_control"), text)
        self.write(self.proc / "vmstat", f"nr_free_pages 1\noom_kill {on_host}\n")

    def read_counters(self, pid=7):
        return memory_kills.read_kill_counters(pid, self.proc, self.groups, self.log)

    def killed(self, before, pid=7):
        return was_oom_killed(pid, before, self.proc, self.log)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return a factory of fake kernels; a read of their logs returns one record, as of /dev/kmsg."""

    def make(**how):
        fake = Kernel(tmp_path / uuid.uuid4().hex, **how)

        def read(descriptor, _size):
            position = os.lseek(descriptor, 1, os.SEEK_CUR) - 1
            if position == 0:
                raise BrokenPipeError  # overwritten in the meantime
            if position > len(fake.log_records):
                raise BlockingIOError
            return fake.log_records[position - 1].encode()

        fake.write(fake.log, "")
        monkeypatch.setattr(
            memory_kills, "os", type("os", (), {**vars(os), "read": staticmethod(read)})
        )
        return fake

    return make


@pytest.mark.parametrize("version", [1, 2])
def test_the_log_names_the_process(kernel, version):
    kernel = kernel(version=version)
    before = kernel.read_counters()
    assert before.logged == 10
    assert kernel.killed(before) is False
    kernel.log_records.append(KILL.format(7))
    kernel.count(1, 1)
    assert kernel.killed(before) is True


def test_the_log_names_another_process(kernel):
    kernel = kernel()
    before = kernel.read_counters()
    kernel.log_records.append(
        "6,11,99,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=8,uid=0\n"
    )
    kernel.count(1, 1)
    assert kernel.killed(before) is False
    assert kernel.killed(before, pid=8) is True


def test_kill_counter_without_a_log_line(kernel):
    kernel = kernel(
        namespace="pid:[4026532999]"
    )  # in a container, pids of the log differ from the namespace's
    before = kernel.read_counters()
    assert isinstance(before.logged, Unknown)
    kernel.log_records.append(KILL.format(8))
    kernel.count(1, 1)
    assert kernel.killed(before) is True


def test_kill_of_another_process_on_the_host(kernel):
    kernel = kernel()
    before = kernel.read_counters(pid=9)  # its cgroup is unknown
    assert isinstance(before.group, Unknown)
    assert kernel.killed(before, pid=9) is False
    kernel.count(0, 1)
    assert isinstance(kernel.killed(before, pid=9), Unknown)


def test_unreadable_kernel_log(tmp_path):
    before = memory_kills.read_kill_counters(7, tmp_path, tmp_path, tmp_path / "none")
    assert isinstance(was_oom_killed(7, before, tmp_path, tmp_path / "none"), Unknown)


def test_a_cgroup_removed_with_its_process(kernel):
    kernel = kernel()
    before = kernel.read_counters()
    (kernel.groups / "job/memory.events").unlink()
    assert kernel.killed(before) is False  # the host's counter has not changed
    kernel.count(0, 1)
    (kernel.groups / "job/memory.events").unlink()
    kernel.log_records.append(KILL.format(8))
    assert kernel.killed(before) is False


def test_the_tightest_limit_of_all_ancestors_counts(tmp_path):
    Kernel.write(tmp_path / "cgroup.controllers", "memory")
    for folder, limit in (("", "max"), ("a", "100"), ("a/b", "200")):
        Kernel.write(tmp_path / folder / "memory.max", limit)
    Kernel.write(tmp_path / "proc/7/cgroup", "0::/a/b\n")
    group = cgroups.cgroup_of(7, "memory", tmp_path / "proc", tmp_path)
    assert cgroups.memory_limit(group).limit_bytes == 100
    Kernel.write(tmp_path / "proc/8/cgroup", "0::/../../outside\n")
    assert cgroups.cgroup_of(8, "memory", tmp_path / "proc", tmp_path).folder == tmp_path
    Kernel.write(tmp_path / "proc/9/cgroup", "4:memory:/x\n")
    assert isinstance(cgroups.cgroup_of(9, "memory", tmp_path / "proc", tmp_path), Unknown)


HOG = "import sys; sys.stdin.readline(); data = [bytearray(b'x') * (1 << 20) for _ in range(4096)]"


def make_limited_cgroup():
    """Create a cgroup of 48 MiB below this process's own; skip the test if this user may not."""
    own = cgroups.cgroup_of("self")
    if isinstance(own, Unknown):
        pytest.skip(own.why)
    folder = own.folder / f"holdfast-test-{uuid.uuid4().hex}"
    limits = {
        1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        2: ("memory.max", "memory.swap.max"),
    }
    try:
        folder.mkdir()
        for name, amount in zip(
            limits[own.version], ("48M", "48M" if own.version == 1 else "0"), strict=True
        ):
            with contextlib.suppress(FileNotFoundError):
                (folder / name).write_text(amount)
        if isinstance(cgroups.memory_limit(cgroups.Cgroup(folder, folder, own.version)), Unknown):
            folder.rmdir()
            pytest.skip("memory cannot be limited in a control group below our own")
    except OSError as error:
        pytest.skip(f"no cgroup can be created below this process's own: {error}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("how", ["out of memory", "SIGKILL"])
def test_a_real_kill(how):
    folder = make_limited_cgroup()
    try:
        with subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE) as child:
            (folder / "cgroup.procs").write_text(str(child.pid))
            before = memory_kills.read_kill_counters(child.pid)
            assert Path(folder).name in str(before.group)
            if how == "SIGKILL":
                child.kill()
            else:
                child.stdin.write(b"go\n")
                child.stdin.flush()
            assert child.wait() == -9
            assert was_oom_killed(child.pid, before) is (how == "out of memory")
    finally:
        folder.rmdir()
