"""Faults from outside of the ranks: what kills agents and watchers, damages files, or takes the machine away."""

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

from holdfast import manifest
from holdfast.actions.chaos import clock
from holdfast.actions.chaos.assess import Fact
from holdfast.actions.chaos.hosts import Host
from holdfast.actions.chaos.scenario import Blow
from holdfast.errors import InternalError

#: Where the job of the scenarios keeps its checkpoints, in its folder.
CHECKPOINTS = "checkpoints"
_FILLER = "filler"
#: Where the store of a job of several hosts listens.
PORT = 29577


class Struck(Protocol):
    """The job that is struck: its processes, its folder, the folders of its run, what its ranks did."""

    @property
    def agents(self) -> Sequence[Popen[bytes]]:
        """``holdfast run`` on each host, which is the agent."""

    @property
    def hosts(self) -> Sequence[Host]:
        """The hosts, where they are none of the machine itself."""

    @property
    def folder(self) -> Path:
        """Where it was started."""

    @property
    def traces(self) -> Mapping[int, Sequence[Fact]]:
        """What each rank did so far."""

    def run(self, host: int) -> Path | None:
        """The folder of this run on that host, once there is one."""

    def living(self) -> Iterator[psutil.Process]:
        """All its processes."""

    def lose(self, host: int) -> None:
        """Expect nothing any more of the agent of that host."""


def kill_agent(job: Struck, blow: Blow) -> str:
    """SIGKILL for ``holdfast run``, as the out-of-memory killer would send it."""
    host = _host(job, blow)
    agent = job.agents[host]
    job.lose(host)
    os.kill(agent.pid, signal.SIGKILL)
    return f"SIGKILL to the agent, process {agent.pid}"


def kill_watcher(job: Struck, blow: Blow) -> str:
    """SIGKILL for the watcher beside the agent."""
    run = job.run(_host(job, blow))
    if run is None:
        raise InternalError("a watcher is to be killed before there is a run")
    facts: dict[str, Any] = msgspec.json.decode((run / "run.json").read_bytes())
    os.kill(facts["watcher"], signal.SIGKILL)
    return f"SIGKILL to the watcher, process {facts['watcher']}"


def kill_rank(job: Struck, _blow: Blow) -> str:
    """SIGKILL for rank 1."""
    pid = next(fact.pid for fact in reversed(job.traces[1]) if fact.pid)
    os.kill(pid, signal.SIGKILL)
    return f"SIGKILL to rank 1, process {pid}"


def kill_host(job: Struck, blow: Blow) -> str:
    """SIGKILL for all that runs on one host, at once."""
    job.lose(blow.host)
    return f"SIGKILL to all {_kill(job.hosts[blow.host].processes())} processes of node{blow.host}"


def warn(job: Struck, _blow: Blow) -> str:
    """SIGTERM for ``holdfast run``, as a scheduler sends it before it takes the machine away."""
    for agent in job.agents:
        agent.send_signal(signal.SIGTERM)
    return "SIGTERM to the agent"


def power_off(job: Struck, _blow: Blow | None = None) -> str:
    """SIGKILL for all that the job is, at once."""
    return f"SIGKILL to all {_kill(job.living())} processes"


def _kill(found: Iterator[psutil.Process]) -> int:
    count = 0
    for process in list(found):
        with suppress(psutil.Error):
            process.kill()
            count += 1
    return count


def _host(job: Struck, blow: Blow) -> int:
    return blow.host if job.hosts else 0


def cut_in(job: Struck, blow: Blow) -> str:
    """Lose what one host is sent."""
    job.hosts[blow.host].cut("input")
    return f"node{blow.host} gets nothing any more"


def cut_both(job: Struck, blow: Blow) -> str:
    """Lose what one host is sent, and what it sends."""
    job.hosts[blow.host].cut("input", "output")
    return f"node{blow.host} gets and sends nothing any more"


def block_port(job: Struck, blow: Blow) -> str:
    """Lose what would open a connection to the port where the job's store listens."""
    job.hosts[blow.host].block(str(PORT))
    return f"port {PORT} of node{blow.host} is blocked"


def block_ranks(job: Struck, blow: Blow) -> str:
    """Lose what would open a connection to any port where ranks listen."""
    job.hosts[blow.host].block()
    return f"the ports of ranks on node{blow.host} are blocked"


def heal(job: Struck, blow: Blow) -> str:
    """Let the network be as it was."""
    job.hosts[blow.host].mend()
    return f"the network of node{blow.host} is as it was"


def move_clock(job: Struck, blow: Blow) -> str:
    """Let the wall clock of all processes jump."""
    clock.move(job.folder, blow.seconds)
    return f"all clocks jump by {blow.seconds:+g} s"


def fill_disk(job: Struck, _blow: Blow) -> str:
    """Fill the file system of the checkpoints to the last byte."""
    with (job.folder / CHECKPOINTS / _FILLER).open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"\0" * (1 << 16)):
            pass
    return "the disk of the checkpoints is full"


def free_disk(job: Struck, _blow: Blow) -> str:
    """Give the room back."""
    (job.folder / CHECKPOINTS / _FILLER).unlink(missing_ok=True)
    return "the disk of the checkpoints has room again"


def flip(job: Struck, blow: Blow) -> str:
    """Turn one bit in the middle of the largest file of the newest checkpoint, and kill rank 1."""
    target = _largest(job)
    with target.open("r+b") as stream:
        stream.seek(target.stat().st_size // 2)
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
    return f"one bit of {target.parent.name}/{target.name} turned; {kill_rank(job, blow)}"


def truncate(job: Struck, blow: Blow) -> str:
    """Cut that file to half its length, and kill rank 1."""
    target = _largest(job)
    os.truncate(target, target.stat().st_size // 2)
    return f"{target.parent.name}/{target.name} cut to half its length; {kill_rank(job, blow)}"


def lose(job: Struck, blow: Blow) -> str:
    """Delete that file, and kill rank 1."""
    target = _largest(job)
    target.unlink()
    return f"{target.parent.name}/{target.name} deleted; {kill_rank(job, blow)}"


def lose_manifest(job: Struck, blow: Blow) -> str:
    """Delete the manifest of the newest checkpoint, as if nobody had finished it, and kill rank 1."""
    target = _newest(job) / manifest.FILE
    target.unlink()
    return f"{target.parent.name}/{target.name} deleted; {kill_rank(job, blow)}"


def _newest(job: Struck) -> Path:
    return manifest.newest_first(job.folder / CHECKPOINTS)[0]


def _largest(job: Struck) -> Path:
    files = [path for path in _newest(job).rglob("*") if path.is_file() and path.name != manifest.FILE]
    return max(files, key=lambda path: path.stat().st_size)


#: Kind -> what does it; each says in a few words what it did.
BLOWS: Mapping[str, Callable[[Struck, Blow], str]] = {
    "kill-agent": kill_agent,
    "kill-watcher": kill_watcher,
    "kill-rank": kill_rank,
    "kill-host": kill_host,
    "cut-in": cut_in,
    "cut-both": cut_both,
    "block-port": block_port,
    "block-ranks": block_ranks,
    "heal": heal,
    "move-clock": move_clock,
    "warn": warn,
    "power-off": power_off,
    "fill-disk": fill_disk,
    "free-disk": free_disk,
    "flip": flip,
    "truncate": truncate,
    "lose": lose,
    "lose-manifest": lose_manifest,
}
