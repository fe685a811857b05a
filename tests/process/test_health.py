"""A host that degrades during a real job is reported in the log and in the verdict."""

import contextlib
import os
import subprocess
import uuid
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.host import cgroups
from tests.process.launched import Launched

SCRIPT = Path(__file__).with_name("fills_up.py")


@pytest.fixture
def small_disk(tmp_path):
    """Yield the folder of a tmpfs, which is unmounted after the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4g", "holdfast-test", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def small_memory():
    """Yield a control group with a limit of 1.5 GiB below our own."""
    own = cgroups.cgroup_of("self")
    if isinstance(own, Unknown):
        pytest.skip(own.why)
    folder = own.folder / f"holdfast-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if own.version == 2 else "memory.limit_in_bytes")).write_text(
            "1500M"
        )
        if own.version == 2:
            (folder / "memory.swap.max").write_text("0")
        if isinstance(cgroups.memory_limit(cgroups.Cgroup(folder, folder, own.version)), Unknown):
            pytest.skip("memory cannot be limited in a control group below our own")
        yield folder
    except OSError as error:
        pytest.skip(f"a control group cannot be created below our own: {error}")
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


@pytest.mark.slow
def test_a_nearly_full_disk_is_reported(small_disk):
    job = Launched(
        small_disk,
        "--standalone",
        "--nproc-per-node",
        1,
        "--json-report",
        "report.json",
        SCRIPT,
        "ends",
        HOLDFAST_HEALTH_S="1",
    )
    try:
        job.wait_for("ready")
        assert "health of" not in job.output
        subprocess.run(["mount", "-o", "remount,size=256m", small_disk], check=True)
        job.wait_for(
            r"health of \S+: 0.2 of 0.2 GiB free at .+\(CKPT\d+ checkpoint-folder-unusable\)"
        )
        (small_disk / "go").write_text("")
        job.end()
    finally:
        job.kill()
    verdict = job.json("report.json")["verdict"]
    assert verdict["root"]["cause"] != "checkpoint-folder-unusable"
    assert "checkpoint-folder-unusable" in [claim["cause"] for claim in verdict["suspects"]]
    assert job.output.count("health of") == 1  # once, not at every check


@pytest.mark.slow
def test_low_memory_is_reported(small_memory, tmp_path):
    own = cgroups.cgroup_of("self").folder
    (small_memory / "cgroup.procs").write_text(str(os.getpid()))
    try:  # the job starts in the group; this process leaves it at once
        job = Launched(
            tmp_path,
            "--standalone",
            "--nproc-per-node",
            1,
            "--json-report",
            "report.json",
            SCRIPT,
            "takes",
            small_memory,
            new_interpreter=True,  # the fork server is not in the group
            HOLDFAST_HEALTH_S="1",
        )
    finally:
        (own / "cgroup.procs").write_text(str(os.getpid()))
    try:
        job.wait_for("ready")
        (tmp_path / "go").write_text("")
        job.wait_for(r"health of \S+: 0\.[01] of 1\.5 GiB of the cgroup limit are left")
        job.end()
    finally:
        job.kill()
    assert "host-oom-killed" in job.output
