"""Is there room in /dev/shm for what workers of one host share?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.shared_memory import FOLDER, SharedMemory
from holdfast.findings import Finding, Level, Remedy, Safety, Unknown, finding
from holdfast.rules.causes import by_name

_MIB, _GIB = 1 << 20, 1 << 30
#: Docker's default. NCCL takes some 10 MiB a pair of ranks, a loader's worker its batches.
_TINY, _SMALL = 64 * _MIB, _GIB
_LARGER = Remedy(
    text="Start the container with more of it.", command="docker run --shm-size=16g …", safety=Safety.DISRUPTIVE
)


def judge(seen: SharedMemory, _place: Place) -> Iterator[Finding]:
    """An error below 64 MiB of room, a warning below 1 GiB."""
    if isinstance(seen.free_bytes, Unknown) or seen.free_bytes >= _SMALL:
        return
    tiny = seen.free_bytes <= _TINY
    cause = by_name("shm-too-small")
    yield finding(
        cause,
        f"{FOLDER} has {seen.free_bytes // _MIB} MiB free, and NCCL and data loaders keep there what they share",
        level=Level.ERROR if tiny else Level.WARNING,
        evidence=seen.facts(),
        remedies=(_LARGER, *cause.remedies),
        confidence=0.9 if tiny else 0.6,
    )
