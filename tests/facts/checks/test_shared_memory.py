"""What is seen of /dev/shm."""

import os

from holdfast.facts.checks import Place
from holdfast.facts.checks.shared_memory import look
from holdfast.findings import Unknown


def test_here():
    seen, asked = look(Place()), os.statvfs("/dev/shm")
    assert seen.size_bytes == asked.f_blocks * asked.f_frsize
    assert seen.facts()[0].text.startswith("shared memory: ")


def test_a_host_without(tmp_path):
    seen = look(Place(root=str(tmp_path)))
    assert seen.size_bytes == Unknown("/dev/shm: No such file or directory")
    assert seen.facts()[0].text == "shared memory: unknown (/dev/shm: No such file or directory)"
