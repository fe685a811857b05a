"""Judges whether /dev/shm has enough space for the workers of one host."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.memory.shm_too_small import SHM_TOO_SMALL
from holdfast.causes.remedies import disruptive
from holdfast.core.findings import Finding, Level, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.shared_memory import SHM_PATH, SharedMemoryResult

_MIB, _GIB = 1 << 20, 1 << 30
#: 64 MiB is Docker's default. NCCL takes about 10 MiB per pair of ranks, a loader worker its
#: batches.
_TINY, _SMALL = 64 * _MIB, _GIB
_LARGER = disruptive("Start the container with a larger /dev/shm.", "docker run --shm-size=16g …")


def judge(result: SharedMemoryResult, _context: CheckContext) -> Iterator[Finding]:
    """Report an error at 64 MiB free or less, a warning below 1 GiB."""
    if isinstance(result.free_bytes, Unknown) or result.free_bytes >= _SMALL:
        return
    tiny = result.free_bytes <= _TINY
    yield make_finding(
        SHM_TOO_SMALL,
        f"{SHM_PATH} has only {result.free_bytes // _MIB} MiB free; NCCL and data loaders keep "
        f"shared memory there",
        level=Level.ERROR if tiny else Level.WARNING,
        evidence=result.facts(),
        remedies=(_LARGER, *SHM_TOO_SMALL.remedies),
        confidence=0.9 if tiny else 0.6,
    )
