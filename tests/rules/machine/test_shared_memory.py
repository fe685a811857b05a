"""How much room in /dev/shm is too little."""

import pytest

from holdfast.facts.checks import CHECKS, Place
from holdfast.facts.checks.shared_memory import SharedMemory
from holdfast.findings import Level, Unknown
from holdfast.rules.machine import judge


@pytest.mark.parametrize(
    ("free", "level"), [(0, Level.ERROR), (64 << 20, Level.ERROR), (65 << 20, Level.WARNING), (1 << 30, None)]
)
def test_room(free, level):
    seen = SharedMemory(size_bytes=1 << 31, free_bytes=free)
    found = judge(CHECKS["shared-memory"], seen, Place(), "a", 5.0)
    assert [claim.level for claim in found] == ([level] if level else [])
    assert all(claim.cause == "shm-too-small" and claim.subject.host == "a" for claim in found)
    assert all(fact.host == "a" and fact.time == 5.0 for claim in found for fact in claim.evidence)


def test_unseen_is_no_finding():
    seen = SharedMemory(size_bytes=Unknown("x"), free_bytes=Unknown("x"))
    assert judge(CHECKS["shared-memory"], seen, Place(), "a") == ()
