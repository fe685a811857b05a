"""How long a process has slept, on real ones and on files as the kernel writes them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.facts.stillness import asleep_s
from holdfast.findings import Unknown


@pytest.fixture
def one_processor():
    """The scheduler's clocks of two processors part by what a hypervisor took from each."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.skipif(not Path("/proc/self/sched").exists(), reason="this kernel does not say when a process last ran")
@pytest.mark.usefixtures("one_processor")
def test_a_process_that_sleeps_is_told_from_one_that_ran():
    said = "import sys; print('up', flush=True); [print('heard', flush=True) for _ in sys.stdin]"
    with subprocess.Popen(
        [sys.executable, "-c", said], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        time.sleep(0.6)
        slept = asleep_s(child.pid)
        child.stdin.write("\n")
        child.stdin.close()
        child.stdout.readline()
        assert asleep_s(child.pid) < slept
    assert 0.4 < slept < 30


def test_files_are_read_as_the_kernel_writes_them(tmp_path):
    for name, last_ms in (("7", "61000.250000"), ("thread-self", "64000.750000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sched").write_text(
            f"train ({name}, #threads: 9)\n{'-' * 67}\nse.exec_start                                :      {last_ms}\n"
        )
    assert asleep_s(7, tmp_path) == pytest.approx(3.0005)
    (tmp_path / "7" / "sched").write_text("train (7, #threads: 9)\n")
    assert "does not say" in asleep_s(7, tmp_path).why
    assert isinstance(asleep_s(8, tmp_path), Unknown)
