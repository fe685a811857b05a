"""How long a thread has slept, for real processes and for files as the kernel writes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.processes.thread_idle_time import thread_idle_s


@pytest.mark.skipif(
    not Path("/proc/self/sched").exists(),
    reason="this kernel does not report when a process last ran",
)
def test_a_sleeping_process_is_distinguished_from_a_running_one():
    program = "import sys; print('up', flush=True); [print('heard', flush=True) for _ in sys.stdin]"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        time.sleep(0.6)
        slept = thread_idle_s(child.pid)
        child.stdin.write("\n")
        child.stdin.close()
        child.stdout.readline()
        assert thread_idle_s(child.pid) < slept
    assert 0.4 < slept < 30


@pytest.mark.skipif(
    not Path("/proc/self/sched").exists(),
    reason="this kernel does not report when a process last ran",
)
@pytest.mark.skipif(shutil.which("taskset") is None, reason="util-linux's taskset is not installed")
def test_idle_time_is_correct_although_cpu_clocks_differ():
    """The clock of a CPU does not advance during time taken by a hypervisor or interrupts."""
    allowed = os.sched_getaffinity(0)
    for cpu in allowed:
        with subprocess.Popen(["taskset", "--cpu-list", str(cpu), "sleep", "60"]) as child:
            time.sleep(0.5)
            slept = thread_idle_s(child.pid)
            child.kill()
        assert 0.3 < slept < 30, cpu
    assert os.sched_getaffinity(0) == allowed


def test_a_cpu_outside_the_affinity_mask_is_reported(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "sched").write_text("se.exec_start : 61000.25\n")
    (tmp_path / "7" / "stat").write_text(f"7 (train) S 1 {' '.join(['0'] * 34)} 1000000 0\n")
    assert "cannot run on CPU 1000000, where 7 last ran" in thread_idle_s(7, tmp_path).why


def test_recorded_kernel_files(tmp_path):
    for name, last_ms in (("7", "61000.250000"), ("thread-self", "64000.750000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sched").write_text(
            f"train ({name}, #threads: 9)\n{'-' * 67}\nse.exec_start                                :      {last_ms}\n"
        )
    cpu = min(os.sched_getaffinity(0))
    (tmp_path / "7" / "stat").write_text(f"7 (train) S 1 {' '.join(['0'] * 34)} {cpu} 0\n")
    assert thread_idle_s(7, tmp_path) == pytest.approx(3.0005)
    (tmp_path / "7" / "sched").write_text("train (7, #threads: 9)\n")
    assert "has no se.exec_start" in thread_idle_s(7, tmp_path).why
    assert isinstance(thread_idle_s(8, tmp_path), Unknown)
