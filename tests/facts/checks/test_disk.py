"""The folder of checkpoints: real folders, a real small file system, a file that leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks.disk import MOST_BYTES, look
from holdfast.findings import Unknown

from .trees import host


def test_a_folder_is_written_to_and_left_as_it_was(tmp_path):
    seen = look(Place(checkpoints=str(tmp_path)))
    assert seen.speed > 0
    assert list(tmp_path.iterdir()) == []
    asked = os.statvfs(tmp_path)
    assert seen.size == asked.f_blocks * asked.f_frsize
    assert seen.kind
    assert seen.facts()[0].origin == f"statvfs of {tmp_path}"


def test_where_no_folder_is_named_nothing_is_written():
    seen = look(Place())
    assert (seen.asked, seen.speed, seen.folder) == (False, None, str(Path.cwd()))


def test_a_folder_that_is_not_there_yet(tmp_path):
    seen = look(Place(checkpoints=str(tmp_path / "a/b")))
    assert (seen.at, seen.obstacle) == (str(tmp_path), "")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    assert look(Place(checkpoints=str(tmp_path / "file"))).obstacle == f"{tmp_path}/file is no folder"
    assert look(Place(checkpoints=str(tmp_path / "file/deeper"))).obstacle == f"{tmp_path}/file is no folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_closed(tmp_path):
    tmp_path.chmod(0o500)
    assert look(Place(checkpoints=str(tmp_path))).obstacle == f"{tmp_path} may not be written to"


@pytest.fixture
def small(tmp_path):
    """A file system of a few MiB in memory."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=64", "none", tmp_path], check=False,
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        pytest.skip(f"mounting is refused: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_small_file_system_is_not_filled(small):
    seen = look(Place(checkpoints=str(small)))
    assert seen.size == 8 << 20
    assert seen.size < 2 * MOST_BYTES
    assert seen.speed is None
    assert seen.kind == "tmpfs"
    assert seen.free_files < 64


def test_one_that_is_read_only(small):
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    assert look(Place(checkpoints=str(small))).obstacle == f"the file system of {small} is read-only"


def test_a_recorded_tree_is_not_written_to(tmp_path):
    mounts = "1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /da\\040ta rw - nfs4 server:/x rw\n"
    place = host(tmp_path, {"/proc/self/mountinfo": mounts, "/da ta/runs/x": ""}, checkpoints="/da ta/runs")
    seen = look(place)
    assert (seen.kind, seen.speed) == ("nfs4", None)
    assert not isinstance(seen.free, Unknown)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folders are made by root")
def test_a_folder_inside_one_that_is_closed():
    script = (
        "import os; from holdfast.facts.checks.disk import look; from holdfast.facts.checks import Place\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "print(look(Place(checkpoints='/root/x/y')).obstacle)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "/root may not be written to\n", done.stderr
