"""Whether the out-of-memory killer ended a process: its control group's counter, the host's, the kernel's log.

The counters are read while the process lives and again when it is dead; the log, where it may be read, names victims.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.facts import cgroups, proc
from holdfast.facts.cgroups import CGROUPS, Cgroup
from holdfast.facts.proc import PROC
from holdfast.findings import Unknown

KERNEL_LOG = Path("/dev/kmsg")
_VICTIM = re.compile(r"[Kk]illed process (\d+)|oom-kill:.*[,=]pid=(\d+)")
_MOST_RECORDS = 20_000
_RECORD_BYTES = 8192
#: The pid namespace of the host itself (a constant of the kernel): only there are the log's numbers ours.
_HOST_NAMESPACE = "pid:[4026531836]"


class MemoryKills(msgspec.Struct, frozen=True):
    """The counters at one moment, and the control group that they were read from (gone from /proc with its process).

    ``logged`` is the number of the kernel log's newest record at that moment.
    """

    group: Cgroup | Unknown
    in_group: int | Unknown
    on_host: int | Unknown
    logged: int | Unknown


def memory_kills(
    pid: int, proc_root: Path = PROC, cgroups_root: Path = CGROUPS, kernel_log: Path = KERNEL_LOG
) -> MemoryKills:
    """The counters of kills as they concern ``pid`` now; to be taken while it lives."""
    group = cgroups.of(pid, "memory", proc_root, cgroups_root)
    in_group = group if isinstance(group, Unknown) else cgroups.kills(group)
    log = _log(kernel_log, proc_root)
    logged = log if isinstance(log, Unknown) else max((number for number, _ in log), default=-1)
    return MemoryKills(group, in_group, _on_host(proc_root), logged)


def _on_host(proc_root: Path) -> int | Unknown:
    counters = proc.fields(proc_root / "vmstat")
    if isinstance(counters, Unknown):
        return counters
    count = counters.get("oom_kill", "")
    return int(count) if count.isdigit() else Unknown("/proc/vmstat does not count kills")


def memory_killed(
    pid: int, before: MemoryKills, proc_root: Path = PROC, kernel_log: Path = KERNEL_LOG
) -> bool | Unknown:
    """Whether ``pid``, which died by SIGKILL after ``before`` was taken, was ended by the out-of-memory killer.

    True where the kernel's log names it, or only its group's counter speaks and has grown; Unknown where nothing could
    be read, or somebody on the host was killed and nobody says who.
    """
    victims = _victims(before.logged, kernel_log, proc_root)
    if pid in victims:
        return True
    in_group = before.group if isinstance(before.group, Unknown) else cgroups.kills(before.group)
    grown_in_group = _grown(before.in_group, in_group)
    grown_on_host = _grown(before.on_host, _on_host(proc_root))
    if grown_in_group is False or grown_on_host is False:
        return False
    if grown_in_group or grown_on_host:
        if victims:
            return False  # the log names the victims, and this process is not one of them
        return True if grown_in_group else Unknown("some process of this host was killed for want of memory")
    return Unknown("neither control group nor /proc/vmstat could be read")


def _grown(before: int | Unknown, after: int | Unknown) -> bool | None:
    return after > before if isinstance(before, int) and isinstance(after, int) else None


def _victims(logged: int | Unknown, kernel_log: Path, proc_root: Path) -> frozenset[int]:
    """Processes that records after ``logged`` name as killed; empty where the log is closed to us, too."""
    log = _log(kernel_log, proc_root)
    if isinstance(logged, Unknown) or isinstance(log, Unknown):
        return frozenset()
    matches = (_VICTIM.search(said) for number, said in log if number > logged)
    return frozenset(int(match[1] or match[2]) for match in matches if match)


def _log(kernel_log: Path, proc_root: Path) -> list[tuple[int, str]] | Unknown:
    """The records of the kernel's log with their numbers, read without waiting."""
    try:
        if str((proc_root / "self/ns/pid").readlink()) != _HOST_NAMESPACE:
            return Unknown("the kernel's log counts processes otherwise than this container does")
        descriptor = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return Unknown(f"{kernel_log} cannot be read: {error.strerror}")
    try:
        return list(_records(descriptor))
    except OSError as error:
        return Unknown(f"{kernel_log} cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterator[tuple[int, str]]:
    """Each read gives one record: ``priority,number,microseconds,flags;text``."""
    for _ in range(_MOST_RECORDS):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue  # overwritten while we read; the next read goes on behind the gap
        if not record:
            return
        head, _, said = record.decode(errors="replace").partition(";")
        number = head.split(",")[1:2]
        if number and number[0].isdigit():
            yield int(number[0]), said
