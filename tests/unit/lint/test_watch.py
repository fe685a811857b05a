"""Files are linted again when they change, until the program is interrupted."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from itertools import islice

import pytest

from holdfast.lint.watch import SETTLE_S, read_file_states, watch_rounds

FINE = "x = 1\n"
GUARDED = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"


def test_each_change_yields_one_round(tmp_path):
    (tmp_path / "a.py").write_text(FINE)
    changes = [
        lambda: None,
        lambda: (tmp_path / "a.py").write_text(GUARDED),
        lambda: (tmp_path / "b.py").write_text(FINE),
        lambda: (tmp_path / "words.txt").write_text("not watched"),
        (tmp_path / "a.py").unlink,
        lambda: (tmp_path / "pyproject.toml").write_text(
            "[tool.holdfast.lint]\nexclude = ['b.py']\n"
        ),
    ]
    pauses = []

    def sleep(seconds):
        if seconds != SETTLE_S:
            pauses.append(seconds)
            changes[len(pauses) - 1]()

    before = len(read_file_states([tmp_path])) - 1  # tables in parent folders of the test machine
    assert [files - before for files in islice(watch_rounds([tmp_path], sleep), 5)] == [
        1,
        1,
        2,
        1,
        1,
    ]
    assert len(pauses) == len(changes)


def test_a_file_being_written_is_awaited(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(FINE)
    settling = [
        lambda: path.write_text(GUARDED[:20]),
        lambda: path.write_text(GUARDED),
        lambda: None,
    ]

    def sleep(seconds):
        if seconds == SETTLE_S:
            settling.pop(0)()
        else:
            path.write_text("")

    assert [path.read_text() for _ in islice(watch_rounds([tmp_path], sleep), 2)] == [FINE, GUARDED]
    assert not settling


@pytest.mark.slow
def test_command_relints_on_a_terminal_until_ctrl_c(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(FINE)
    controller_fd, terminal_fd = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "lint", "--watch", str(tmp_path)]
    process = subprocess.Popen(
        command,
        stdin=terminal_fd,
        stdout=terminal_fd,
        stderr=terminal_fd,
        start_new_session=True,
    )
    os.close(terminal_fd)
    try:
        first = read_until(controller_fd, b"Ctrl-C to stop")
        assert b"1 file, " in first
        assert b"No findings" in first
        assert b"\x1b[2J" in first
        path.write_text(GUARDED)
        second = read_until(controller_fd, b"1 finding")
        assert b"SYNC004" in second
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert b"Traceback" not in read_until(controller_fd, None)
    finally:
        process.kill()
        process.wait()
        os.close(controller_fd)


def read_until(descriptor, mark):
    output, end = b"", time.monotonic() + 60
    while mark is None or mark not in output:
        ready, _, _ = select.select([descriptor], [], [], max(0, end - time.monotonic()))
        assert ready, output
        try:
            more = os.read(descriptor, 1 << 16)
        except OSError:  # the other side is closed
            return output
        if not more:
            return output
        output += more
    return output
