"""Sets up what a scenario needs: a small disk, a memory limit, network hosts, a shiftable clock."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path

from holdfast.chaos import network_hosts, shifted_clock
from holdfast.chaos.external_faults import CHECKPOINTS
from holdfast.chaos.network_hosts import NetworkHost
from holdfast.chaos.scenario import Scenario
from holdfast.core.errors import InvalidValue
from holdfast.host import cgroups
from holdfast.host.cgroups import Cgroup

_EMPTY_WITHIN_S = 5.0


def unsupported_reason(scenario: Scenario) -> str:
    """Return why the scenario cannot run on this machine; '' if it can."""
    reasons = (
        scenario.mode.startswith("zero")
        and not find_spec("deepspeed")
        and "deepspeed is not installed",
        scenario.hosts > 1 and network_hosts.unsupported_reason(),
        scenario.clock and shifted_clock.unsupported_reason(),
        scenario.disk_mib
        and (os.geteuid() or not shutil.which("mount"))
        and "a separate small disk needs root and the program mount",
        scenario.memory_mib and _memory_limit_problem(),
    )
    return next((str(reason) for reason in reasons if reason), "")


def _memory_limit_problem() -> str:
    group = cgroups.cgroup_of(os.getpid())
    if not isinstance(group, Cgroup):
        return group.why
    if group.version == 2:  # a cgroup v2 with processes cannot have child groups
        return "a memory limit needs cgroup v1, or a delegated cgroup"
    writable = os.access(group.folder, os.W_OK)
    return "" if writable else f"a memory limit needs {group.folder} to be writable"


@contextmanager
def scenario_environment(
    scenario: Scenario, folder: Path
) -> Iterator[tuple[Sequence[str], Sequence[NetworkHost]]]:
    """Set up the environment; yield the command prefix that enters it, and the hosts.

    Raises:
        InvalidValue: this machine does not support it.
        WorldError: the setup failed unexpectedly.
    """
    why = unsupported_reason(scenario)
    if why:
        raise InvalidValue(
            f"the scenario {scenario.name!r}",
            why=why,
            next_step="run it on a machine that supports it",
        )
    variables = shifted_clock.create_clock(folder) if scenario.clock else {}
    network = network_hosts.connected_hosts(folder) if scenario.hosts > 1 else nullcontext(())
    with (
        _disk(folder / CHECKPOINTS, scenario.disk_mib),
        _memory(scenario.memory_mib) as command_prefix,
        network as hosts,
    ):
        yield (
            (*command_prefix, "env", *(f"{name}={value}" for name, value in variables.items())),
            hosts,
        )


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
    group = cgroups.cgroup_of(os.getpid())
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
            with suppress(OSError):  # busy until its last process is reaped
                own.rmdir()
            time.sleep(0.05)
