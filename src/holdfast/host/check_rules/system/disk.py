"""Judges whether checkpoints can be written to the checkpoint folder, and fast enough."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.checkpoint.checkpoint_folder_unusable import CHECKPOINT_FOLDER_UNUSABLE
from holdfast.causes.checkpoint.checkpoint_io_slow_timeout import CHECKPOINT_IO_SLOW_TIMEOUT
from holdfast.causes.remedies import automatic
from holdfast.core.findings import Cause, Finding, Level, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.disk import DiskResult

_GIB = 1 << 30
_MIN_FREE, _LOW_FREE, _LOW_FREE_SHARE = _GIB, 20 * _GIB, 0.05
_MIN_FREE_FILES = 1000
#: At this speed a checkpoint of 10 GiB takes more than three minutes.
_SLOW_BYTES_PER_S = 50e6
#: File systems whose content is lost with the host or the container.
_EPHEMERAL = {"tmpfs": "memory", "ramfs": "memory", "overlay": "the container layer"}


def judge(result: DiskResult, _context: CheckContext) -> Iterator[Finding]:
    """Report errors only for a named folder: the current directory may not be the target."""
    worst = Level.ERROR if result.is_named else Level.WARNING
    if result.obstacle and result.is_named:
        yield _disk_finding(
            result,
            CHECKPOINT_FOLDER_UNUSABLE,
            Level.ERROR,
            f"cannot write checkpoints to {result.folder}: {result.obstacle}",
            0.95,
        )
    if isinstance(result.free, int) and isinstance(result.size, int) and result.size:
        yield from _judge_free_space(result, result.free, result.size, worst)
    if result.free_files is not None and result.free_files < _MIN_FREE_FILES:
        yield _disk_finding(
            result,
            CHECKPOINT_FOLDER_UNUSABLE,
            Level.WARNING,
            f"the file system of {result.folder} has only {result.free_files} free inodes: writes "
            "fail even if bytes are free",
            0.9,
        )
    if isinstance(result.speed, float) and result.speed < _SLOW_BYTES_PER_S:
        minutes = 10 * _GIB / result.speed / 60
        yield _disk_finding(
            result,
            CHECKPOINT_IO_SLOW_TIMEOUT,
            Level.WARNING,
            f"slow writes to {result.folder}: {result.speed / 1e6:.0f} MB/s. A 10 GiB checkpoint "
            f"takes {minutes:.0f} minutes, during which the other ranks wait",
            0.6,
        )
    if result.is_named and result.kind in _EPHEMERAL:
        yield _disk_finding(
            result,
            CHECKPOINT_FOLDER_UNUSABLE,
            Level.WARNING,
            f"{result.folder} is in {_EPHEMERAL[result.kind]} ({result.kind}): checkpoints are "
            f"lost with it",
            0.6,
        )


def _judge_free_space(result: DiskResult, free: int, size: int, worst: Level) -> Iterator[Finding]:
    text = f"{free / _GIB:.1f} of {size / _GIB:.1f} GiB free at {result.folder}"
    cause = CHECKPOINT_FOLDER_UNUSABLE
    if free < _MIN_FREE:
        yield _disk_finding(result, cause, worst, f"{text}: the next checkpoint fills it", 0.9)
    elif free < _LOW_FREE and free < _LOW_FREE_SHARE * size:
        yield _disk_finding(result, cause, Level.WARNING, f"{text}: a few checkpoints fill it", 0.6)


def _disk_finding(
    result: DiskResult, cause: Cause, level: Level, message: str, confidence: float
) -> Finding:
    usage = automatic(
        "Check what is mounted there and its usage.",
        f"findmnt -T {result.at}; df -h -i {result.at}",
    )
    known = not isinstance(result.size, Unknown)
    return make_finding(
        cause,
        message,
        level=level,
        evidence=result.facts(),
        remedies=(usage, *cause.remedies) if known else cause.remedies,
        confidence=confidence,
    )
