"""Size and free space of /dev/shm."""

import os

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.shared_memory import inspect


def test_this_host():
    result, status = inspect(CheckContext()), os.statvfs("/dev/shm")
    assert result.size_bytes == status.f_blocks * status.f_frsize
    assert result.facts()[0].text.startswith("shared memory: ")


def test_a_host_without_shared_memory(tmp_path):
    result = inspect(CheckContext(root=str(tmp_path)))
    assert result.size_bytes == Unknown("/dev/shm: No such file or directory")
    assert result.facts()[0].text == "shared memory: unknown (/dev/shm: No such file or directory)"
