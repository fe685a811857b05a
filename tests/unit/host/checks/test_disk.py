"""The checkpoint folder: real folders, a small real file system, and a test file that is removed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.disk import MAX_TEST_BYTES, inspect

from .trees import host


def test_a_test_file_is_written_and_removed(tmp_path):
    result = inspect(CheckContext(checkpoints=str(tmp_path)))
    assert result.speed > 0
    assert list(tmp_path.iterdir()) == []
    status = os.statvfs(tmp_path)
    assert result.size == status.f_blocks * status.f_frsize
    assert result.kind
    assert result.facts()[0].origin == f"statvfs of {tmp_path}"


def test_nothing_is_written_without_a_folder():
    result = inspect(CheckContext())
    assert (result.is_named, result.speed, result.folder) == (False, None, str(Path.cwd()))


def test_a_folder_that_does_not_exist_yet(tmp_path):
    result = inspect(CheckContext(checkpoints=str(tmp_path / "a/b")))
    assert (result.at, result.obstacle) == (str(tmp_path), "")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_of_the_kernel_stores_no_checkpoints():
    result = inspect(CheckContext(checkpoints="/proc/checkpoints"))
    assert (result.obstacle, result.speed) == ("/proc is on proc, which stores no files", None)


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    assert (
        inspect(CheckContext(checkpoints=str(tmp_path / "file"))).obstacle
        == f"{tmp_path}/file is not a directory"
    )
    assert (
        inspect(CheckContext(checkpoints=str(tmp_path / "file/deeper"))).obstacle
        == f"{tmp_path}/file is not a directory"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(tmp_path):
    tmp_path.chmod(0o500)
    assert (
        inspect(CheckContext(checkpoints=str(tmp_path))).obstacle
        == f"no write permission for {tmp_path}"
    )


@pytest.fixture
def small(tmp_path):
    """Mount an in-memory file system of a few MiB."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=64", "none", tmp_path],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"mounting is refused: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_small_file_system_is_not_filled(small):
    result = inspect(CheckContext(checkpoints=str(small)))
    assert result.size == 8 << 20
    assert result.size < 2 * MAX_TEST_BYTES
    assert result.speed is None
    assert result.kind == "tmpfs"
    assert result.free_files < 64


def test_a_read_only_file_system(small):
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    assert (
        inspect(CheckContext(checkpoints=str(small))).obstacle
        == f"the file system of {small} is read-only"
    )


def test_a_recorded_tree_is_not_written_to(tmp_path):
    mounts = "1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /da\\040ta rw - nfs4 server:/x rw\n"
    context = host(
        tmp_path, {"/proc/self/mountinfo": mounts, "/da ta/runs/x": ""}, checkpoints="/da ta/runs"
    )
    result = inspect(context)
    assert (result.kind, result.speed) == ("nfs4", None)
    assert not isinstance(result.free, Unknown)


@pytest.mark.skipif(os.geteuid() != 0, reason="creating another user's folders requires root")
def test_a_folder_inside_an_inaccessible_one():
    script = (
        "import os; from holdfast.host.checks.system.disk import inspect; from holdfast.host.checks import CheckContext\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "print(inspect(CheckContext(checkpoints='/root/x/y')).obstacle)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "no write permission for /root\n", done.stderr
