"""Determines whether the OOM killer ended a process, by kill counters and the kernel log.

The counters are read while the process lives and again after its death; the log, if readable, names
the victims.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.host import cgroups
from holdfast.host.cgroups import CGROUPS, Cgroup
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

KERNEL_LOG = Path("/dev/kmsg")
_VICTIM = re.compile(r"[Kk]illed process (\d+)|oom-kill:.*[,=]pid=(\d+)")
_MAX_RECORDS = 20_000
_RECORD_BYTES = 8192
#: The host's own pid namespace (a kernel constant): only there do the log's pids match ours.
_HOST_NAMESPACE = "pid:[4026531836]"


class MemoryKills(msgspec.Struct, frozen=True):
    """The kill counters at one time, and their cgroup (unknown after the process has ended).

    ``logged`` is the number of the newest record of the kernel log at that time.
    """

    group: Cgroup | Unknown
    in_group: int | Unknown
    on_host: int | Unknown
    logged: int | Unknown


def read_kill_counters(
    pid: int, proc_root: Path = PROC, cgroups_root: Path = CGROUPS, kernel_log: Path = KERNEL_LOG
) -> MemoryKills:
    """Read the kill counters that apply to ``pid``, while it lives."""
    group = cgroups.cgroup_of(pid, "memory", proc_root, cgroups_root)
    in_group = group if isinstance(group, Unknown) else cgroups.memory_kill_count(group)
    log = _read_log(kernel_log, proc_root)
    logged = log if isinstance(log, Unknown) else max((number for number, _ in log), default=-1)
    return MemoryKills(group, in_group, _kills_on_host(proc_root), logged)


def _kills_on_host(proc_root: Path) -> int | Unknown:
    counters = proc.read_fields(proc_root / "vmstat")
    if isinstance(counters, Unknown):
        return counters
    count = counters.get("oom_kill", "")
    return int(count) if count.isdigit() else Unknown("/proc/vmstat does not count kills")


def was_oom_killed(
    pid: int, before: MemoryKills, proc_root: Path = PROC, kernel_log: Path = KERNEL_LOG
) -> bool | Unknown:
    """Return whether the OOM killer ended ``pid``, which died by SIGKILL after ``before`` was read.

    True if the kernel log names it, or, without a log, if its cgroup's counter increased; Unknown
    if nothing was readable, or if an unidentified process of the host was killed.
    """
    victims = _victims(before.logged, kernel_log, proc_root)
    if pid in victims:
        return True
    in_group = (
        before.group
        if isinstance(before.group, Unknown)
        else cgroups.memory_kill_count(before.group)
    )
    group_increased = _increased(before.in_group, in_group)
    host_increased = _increased(before.on_host, _kills_on_host(proc_root))
    if group_increased is False or host_increased is False:
        return False
    if group_increased or host_increased:
        if victims:
            return False  # the log names the victims, and this process is not one of them
        return (
            True
            if group_increased
            else Unknown("the OOM killer ended an unidentified process of this host")
        )
    return Unknown("neither the cgroup nor /proc/vmstat could be read")


def _increased(before: int | Unknown, after: int | Unknown) -> bool | None:
    return after > before if isinstance(before, int) and isinstance(after, int) else None


def _victims(logged: int | Unknown, kernel_log: Path, proc_root: Path) -> frozenset[int]:
    """Return the processes that log records after ``logged`` name as killed.

    Empty if the log is unreadable.
    """
    log = _read_log(kernel_log, proc_root)
    if isinstance(logged, Unknown) or isinstance(log, Unknown):
        return frozenset()
    matches = (_VICTIM.search(text) for number, text in log if number > logged)
    return frozenset(int(match[1] or match[2]) for match in matches if match)


def _read_log(kernel_log: Path, proc_root: Path) -> list[tuple[int, str]] | Unknown:
    """Return the records of the kernel log with their numbers, read without blocking."""
    try:
        if str((proc_root / "self/ns/pid").readlink()) != _HOST_NAMESPACE:
            return Unknown("the kernel log has other pids than this container")
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
    """Yield number and text of each record ``priority,number,microseconds,flags;text``."""
    for _ in range(_MAX_RECORDS):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue  # the record was overwritten; the next read continues after the gap
        if not record:
            return
        head, _, text = record.decode(errors="replace").partition(";")
        number = head.split(",")[1:2]
        if number and number[0].isdigit():
            yield int(number[0]), text
