"""What a scenario wants of the machine: a small disk, a limit on memory, hosts, a clock; taken away at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path

from holdfast.actions.chaos import clock, hosts
from holdfast.actions.chaos.blows import CHECKPOINTS
from holdfast.actions.chaos.hosts import Host
from holdfast.actions.chaos.scenario import Scenario
from holdfast.errors import BadValue
from holdfast.facts import cgroups
from holdfast.facts.cgroups import Cgroup

_EMPTY_WITHIN_S = 5.0


def why_not(scenario: Scenario) -> str:
    """Why the scenario cannot be played on this machine; empty where it can be."""
    reasons = (
        scenario.mode.startswith("zero") and not find_spec("deepspeed") and "deepspeed is not installed",
        scenario.hosts > 1 and hosts.why_not(),
        scenario.clock and clock.why_not(),
        scenario.disk_mib and (os.geteuid() or not shutil.which("mount"))
        and "a small disk of its own needs root, and the program mount",
        scenario.memory_mib and _no_limit(),
    )  # fmt: skip
    return next((str(reason) for reason in reasons if reason), "")


def _no_limit() -> str:
    group = cgroups.of(os.getpid())
    if not isinstance(group, Cgroup):
        return group.why
    if group.version == 2:  # a group that has processes can have no groups below that count (no internal processes)
        return "a limit on memory of its own needs control groups of version 1, or a delegated one"
    return "" if os.access(group.folder, os.W_OK) else f"a limit on memory needs {group.folder} to be writable"


@contextmanager
def place(scenario: Scenario, folder: Path) -> Iterator[tuple[Sequence[str], Sequence[Host]]]:
    """Make what the scenario wants: the words in front of the job's command that put it there, and the hosts.

    Raises:
        BadValue: this machine does not allow it.
        WorldError: it should, and does not.
    """
    why = why_not(scenario)
    if why:
        raise BadValue(f"the scenario {scenario.name!r}", why=why, next_step="play it on a machine that allows it")
    variables = clock.make(folder) if scenario.clock else {}
    made = hosts.joined(folder) if scenario.hosts > 1 else nullcontext(())
    with _disk(folder / CHECKPOINTS, scenario.disk_mib), _memory(scenario.memory_mib) as words, made as found:
        yield (*words, "env", *(f"{name}={value}" for name, value in variables.items())), found


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
