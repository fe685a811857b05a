"""What a scenario wants of the machine: a small disk of its own, a limit on memory. Both are taken away at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.actions.chaos.blows import CHECKPOINTS
from holdfast.actions.chaos.scenarios import Scenario
from holdfast.errors import BadValue
from holdfast.facts import cgroups
from holdfast.facts.cgroups import Cgroup

_EMPTY_WITHIN_S = 5.0


def why_not(scenario: Scenario) -> str:
    """Why the scenario cannot be played on this machine; empty where it can be."""
    if scenario.disk_mib and (os.geteuid() or not shutil.which("mount")):
        return "a small disk of its own needs root, and the program mount"
    if scenario.memory_mib:
        group = cgroups.of(os.getpid())
        if not isinstance(group, Cgroup):
            return group.why
        if group.version == 2:  # a group that has processes can have no groups below that count (no internal processes)
            return "a limit on memory of its own needs control groups of version 1, or a delegated one"
        if not os.access(group.folder, os.W_OK):
            return f"a limit on memory of its own needs {group.folder} to be writable"
    return ""


@contextmanager
def place(scenario: Scenario, folder: Path) -> Iterator[Sequence[str]]:
    """Make what the scenario wants, and give the words in front of the job's command that put it there.

    Raises:
        BadValue: this machine does not allow it.
    """
    why = why_not(scenario)
    if why:
        raise BadValue(f"the scenario {scenario.name!r}", why=why, next_step="play it on a machine that allows it")
    with _disk(folder / CHECKPOINTS, scenario.disk_mib), _memory(scenario.memory_mib) as words:
        yield words


@contextmanager
def _disk(folder: Path, mib: int) -> Iterator[None]:
    if not mib:
        yield
        return
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def _memory(mib: int) -> Iterator[Sequence[str]]:
    group = cgroups.of(os.getpid())
    if not mib or not isinstance(group, Cgroup):
        yield ()
        return
    own = group.folder / f"holdfast-chaos-{os.getpid()}"
    own.mkdir()
    (own / "memory.limit_in_bytes").write_text(str(mib << 20))
    try:
        yield ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(own / "cgroup.procs"))
    finally:
        until = time.monotonic() + _EMPTY_WITHIN_S
        while own.exists() and time.monotonic() < until:
            with suppress(OSError):  # until the last of its processes is buried
                own.rmdir()
            time.sleep(0.05)
