"""Can checkpoints be written there, and in time?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.disk import Disk
from holdfast.findings import Finding, Level, Remedy, Safety, Unknown, finding
from holdfast.rules.causes import by_name

_GIB = 1 << 30
_NONE_LEFT, _LITTLE_LEFT, _LITTLE_SHARE = _GIB, 20 * _GIB, 0.05
_FEW_FILES = 1000
#: At this speed a checkpoint of 10 GiB takes more than three minutes.
_SLOW = 50e6
#: File systems whose content is gone with the host or the container.
_PASSING = {"tmpfs": "memory", "ramfs": "memory", "overlay": "the container's own layer"}


def judge(seen: Disk, _place: Place) -> Iterator[Finding]:
    """Errors only where the folder was named; the current one may be meant for nothing."""
    gravest = Level.ERROR if seen.asked else Level.WARNING
    if seen.obstacle and seen.asked:
        yield _claim(
            seen,
            "checkpoint-folder-unusable",
            Level.ERROR,
            f"no checkpoint can be written to {seen.folder}: {seen.obstacle}",
            0.95,
        )
    if isinstance(seen.free, int) and isinstance(seen.size, int) and seen.size:
        yield from _room(seen, seen.free, seen.size, gravest)
    if seen.free_files is not None and seen.free_files < _FEW_FILES:
        yield _claim(
            seen,
            "checkpoint-folder-unusable",
            Level.WARNING,
            f"the file system of {seen.folder} has room for {seen.free_files} more files, though bytes may be free",
            0.9,
        )
    if isinstance(seen.speed, float) and seen.speed < _SLOW:
        minutes = 10 * _GIB / seen.speed / 60
        yield _claim(
            seen,
            "checkpoint-io-slow-timeout",
            Level.WARNING,
            f"{seen.folder} takes {seen.speed / 1e6:.0f} MB/s: "
            f"10 GiB of checkpoint need {minutes:.0f} minutes, in which the other ranks wait",
            0.6,
        )
    if seen.asked and seen.kind in _PASSING:
        yield _claim(
            seen,
            "checkpoint-folder-unusable",
            Level.WARNING,
            f"{seen.folder} lies in {_PASSING[seen.kind]} ({seen.kind}): checkpoints are gone with it",
            0.6,
        )


def _room(seen: Disk, free: int, size: int, gravest: Level) -> Iterator[Finding]:
    text = f"{free / _GIB:.1f} of {size / _GIB:.1f} GiB are free at {seen.folder}"
    if free < _NONE_LEFT:
        yield _claim(seen, "checkpoint-folder-unusable", gravest, f"{text}: the next checkpoint fills it", 0.9)
    elif free < _LITTLE_LEFT and free < _LITTLE_SHARE * size:
        yield _claim(seen, "checkpoint-folder-unusable", Level.WARNING, f"{text}: a few checkpoints fill it", 0.6)


def _claim(seen: Disk, cause: str, level: Level, message: str, confidence: float) -> Finding:
    entry = by_name(cause)
    own = Remedy(
        text="See what is mounted there, and how full it is.",
        command=f"findmnt -T {seen.at}; df -h -i {seen.at}",
        safety=Safety.AUTOMATIC,
    )
    unknown = isinstance(seen.size, Unknown)
    return finding(
        entry,
        message,
        level=level,
        evidence=seen.facts(),
        remedies=entry.remedies if unknown else (own, *entry.remedies),
        confidence=confidence,
    )
