"""How long a process has slept, on real ones and on files as the kernel writes them."""

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
    not Path("/proc/self/sched").exists(), reason="this kernel does not say when a process last ran"
)
def test_a_sleeping_process_is_distinguished_from_a_running_one():
    said = "import sys; print('up', flush=True); [print('heard', flush=True) for _ in sys.stdin]"
    with subprocess.Popen(
        [sys.executable, "-c", said], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
    not Path("/proc/self/sched").exists(), reason="this kernel does not say when a process last ran"
)
@pytest.mark.skipif(shutil.which("taskset") is None, reason="util-linux's taskset is not there")
def test_the_clocks_of_processors_part_and_that_does_no_harm():
    """What a hypervisor or interrupts took from a processor is missing in its clock."""
    allowed = os.sched_getaffinity(0)
    for processor in allowed:
        with subprocess.Popen(["taskset", "--cpu-list", str(processor), "sleep", "60"]) as child:
            time.sleep(0.5)
            slept = thread_idle_s(child.pid)
            child.kill()
        assert 0.3 < slept < 30, processor
    assert os.sched_getaffinity(0) == allowed


def test_a_cpu_outside_the_affinity_mask_is_reported(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "sched").write_text("se.exec_start : 61000.25\n")
    (tmp_path / "7" / "stat").write_text(f"7 (train) S 1 {' '.join(['0'] * 34)} 1000000 0\n")
    assert "cannot run on CPU 1000000, where 7 last ran" in thread_idle_s(7, tmp_path).why


def test_files_are_read_as_the_kernel_writes_them(tmp_path):
    for name, last_ms in (("7", "61000.250000"), ("thread-self", "64000.750000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sched").write_text(
            f"train ({name}, #threads: 9)\n{'-' * 67}\nse.exec_start                                :      {last_ms}\n"
        )
    processor = min(os.sched_getaffinity(0))
    (tmp_path / "7" / "stat").write_text(f"7 (train) S 1 {' '.join(['0'] * 34)} {processor} 0\n")
    assert thread_idle_s(7, tmp_path) == pytest.approx(3.0005)
    (tmp_path / "7" / "sched").write_text("train (7, #threads: 9)\n")
    assert "has no se.exec_start" in thread_idle_s(7, tmp_path).why
    assert isinstance(thread_idle_s(8, tmp_path), Unknown)
