"""Faults from outside the ranks: kill agents and watchers, damage files, cut the network."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, Protocol

import msgspec
import psutil

from holdfast.chaos import shifted_clock
from holdfast.chaos.assessment import TraceRecord
from holdfast.chaos.network_hosts import NetworkHost
from holdfast.chaos.scenario import ExternalFault
from holdfast.core import checkpoint_manifest
from holdfast.core.errors import InternalError

#: The checkpoint folder of the scenario's job, in its working directory.
CHECKPOINTS = "checkpoints"
_FILLER = "filler"
#: Port of the rendezvous store of multi-host jobs.
PORT = 29577


class TargetJob(Protocol):
    """The job under test: processes, folder, run folders, and the traces of its ranks."""

    @property
    def agents(self) -> Sequence[Popen[bytes]]:
        """Return the ``holdfast run`` process of each host."""

    @property
    def hosts(self) -> Sequence[NetworkHost]:
        """Return the emulated hosts; empty for a job on the machine itself."""

    @property
    def folder(self) -> Path:
        """Return the working directory."""

    @property
    def traces(self) -> Mapping[int, Sequence[TraceRecord]]:
        """Return what each rank did so far."""

    def run(self, host: int) -> Path | None:
        """Return the run folder on that host; None before it exists."""

    def live_processes(self) -> Iterator[psutil.Process]:
        """Return all its processes."""

    def mark_lost(self, host: int) -> None:
        """Expect nothing further from the agent of that host."""


def kill_agent(job: TargetJob, fault: ExternalFault) -> str:
    """Send SIGKILL to ``holdfast run``, as the OOM killer would."""
    host = _target_host(job, fault)
    agent = job.agents[host]
    job.mark_lost(host)
    os.kill(agent.pid, signal.SIGKILL)
    return f"SIGKILL to the agent, process {agent.pid}"


def kill_watcher(job: TargetJob, fault: ExternalFault) -> str:
    """Send SIGKILL to the watcher of a host."""
    run = job.run(_target_host(job, fault))
    if run is None:
        raise InternalError("kill-watcher was triggered before the run started")
    facts: dict[str, Any] = msgspec.json.decode((run / "run.json").read_bytes())
    os.kill(facts["watcher"], signal.SIGKILL)
    return f"SIGKILL to the watcher, process {facts['watcher']}"


def kill_rank(job: TargetJob, _fault: ExternalFault) -> str:
    """Send SIGKILL to rank 1."""
    pid = next(fact.pid for fact in reversed(job.traces[1]) if fact.pid)
    os.kill(pid, signal.SIGKILL)
    return f"SIGKILL to rank 1, process {pid}"


def kill_host(job: TargetJob, fault: ExternalFault) -> str:
    """Send SIGKILL to all processes of one host."""
    job.mark_lost(fault.host)
    count = _kill_all(job.hosts[fault.host].processes())
    return f"SIGKILL to all {count} processes of node{fault.host}"


def send_preemption(job: TargetJob, _fault: ExternalFault) -> str:
    """Send SIGTERM to ``holdfast run``, as a scheduler does before preemption."""
    for agent in job.agents:
        agent.send_signal(signal.SIGTERM)
    return "SIGTERM to the agent"


def power_off(job: TargetJob, _fault: ExternalFault | None = None) -> str:
    """Send SIGKILL to all processes of the job."""
    return f"SIGKILL to all {_kill_all(job.live_processes())} processes"


def _kill_all(processes: Iterator[psutil.Process]) -> int:
    count = 0
    for process in list(processes):
        with suppress(psutil.Error):
            process.kill()
            count += 1
    return count


def _target_host(job: TargetJob, fault: ExternalFault) -> int:
    return fault.host if job.hosts else 0


def cut_in(job: TargetJob, fault: ExternalFault) -> str:
    """Drop packets to one host."""
    job.hosts[fault.host].cut("input")
    return f"node{fault.host} receives no packets"


def cut_both(job: TargetJob, fault: ExternalFault) -> str:
    """Drop packets to and from one host."""
    job.hosts[fault.host].cut("input", "output")
    return f"node{fault.host} receives and sends no packets"


def block_port(job: TargetJob, fault: ExternalFault) -> str:
    """Drop packets that open connections to the store's port."""
    job.hosts[fault.host].block(str(PORT))
    return f"port {PORT} of node{fault.host} is blocked"


def block_ranks(job: TargetJob, fault: ExternalFault) -> str:
    """Drop packets that open connections to any port of ranks."""
    job.hosts[fault.host].block()
    return f"the rank ports of node{fault.host} are blocked"


def heal_network(job: TargetJob, fault: ExternalFault) -> str:
    """Remove all network faults of a host."""
    job.hosts[fault.host].heal()
    return f"the network of node{fault.host} is restored"


def move_clock(job: TargetJob, fault: ExternalFault) -> str:
    """Shift the wall clock of all processes."""
    shifted_clock.shift_clock(job.folder, fault.seconds)
    return f"all clocks shifted by {fault.seconds:+g} s"


def fill_disk(job: TargetJob, _fault: ExternalFault) -> str:
    """Fill the file system of the checkpoints completely."""
    with (job.folder / CHECKPOINTS / _FILLER).open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"\0" * (1 << 16)):
            pass
    return "the checkpoint disk is full"


def free_disk(job: TargetJob, _fault: ExternalFault) -> str:
    """Free the space again."""
    (job.folder / CHECKPOINTS / _FILLER).unlink(missing_ok=True)
    return "the checkpoint disk has space again"


def flip_bit(job: TargetJob, fault: ExternalFault) -> str:
    """Flip one bit in the middle of the newest checkpoint's largest file, and kill rank 1."""
    target = _largest_file(job)
    with target.open("r+b") as stream:
        stream.seek(target.stat().st_size // 2)
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
    name = f"{target.parent.name}/{target.name}"
    return f"one bit of {name} flipped; {kill_rank(job, fault)}"


def truncate_file(job: TargetJob, fault: ExternalFault) -> str:
    """Truncate that file to half its size, and kill rank 1."""
    target = _largest_file(job)
    os.truncate(target, target.stat().st_size // 2)
    name = f"{target.parent.name}/{target.name}"
    return f"{name} truncated to half its size; {kill_rank(job, fault)}"


def delete_file(job: TargetJob, fault: ExternalFault) -> str:
    """Delete that file, and kill rank 1."""
    target = _largest_file(job)
    target.unlink()
    return f"{target.parent.name}/{target.name} deleted; {kill_rank(job, fault)}"


def delete_manifest(job: TargetJob, fault: ExternalFault) -> str:
    """Delete the newest checkpoint's manifest, as if it was not committed, and kill rank 1."""
    target = _newest_checkpoint(job) / checkpoint_manifest.FILE
    target.unlink()
    return f"{target.parent.name}/{target.name} deleted; {kill_rank(job, fault)}"


def _newest_checkpoint(job: TargetJob) -> Path:
    return checkpoint_manifest.folders_newest_first(job.folder / CHECKPOINTS)[0]


def _largest_file(job: TargetJob) -> Path:
    files = [
        path
        for path in _newest_checkpoint(job).rglob("*")
        if path.is_file() and path.name != checkpoint_manifest.FILE
    ]
    return max(files, key=lambda path: path.stat().st_size)


#: Kind -> function that injects the fault and returns a short description.
EXTERNAL_FAULTS: Mapping[str, Callable[[TargetJob, ExternalFault], str]] = {
    "kill-agent": kill_agent,
    "kill-watcher": kill_watcher,
    "kill-rank": kill_rank,
    "kill-host": kill_host,
    "cut-in": cut_in,
    "cut-both": cut_both,
    "block-port": block_port,
    "block-ranks": block_ranks,
    "heal": heal_network,
    "move-clock": move_clock,
    "warn": send_preemption,
    "power-off": power_off,
    "fill-disk": fill_disk,
    "free-disk": free_disk,
    "flip": flip_bit,
    "truncate": truncate_file,
    "lose": delete_file,
    "lose-manifest": delete_manifest,
}
