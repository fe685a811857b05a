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
from holdfast.actions.chaos.assess import Fact
from holdfast.errors import InternalError

#: Where the job of the scenarios keeps its checkpoints, in its folder.
CHECKPOINTS = "checkpoints"
_FILLER = "filler"


class Struck(Protocol):
    """The job that is struck: its own process, its folder, the folder of its run, what its ranks did."""

    @property
    def process(self) -> Popen[bytes]:
        """``holdfast run``, which is the agent."""

    @property
    def folder(self) -> Path:
        """Where it was started."""

    @property
    def run(self) -> Path | None:
        """The folder of this run, once there is one."""

    @property
    def traces(self) -> Mapping[int, Sequence[Fact]]:
        """What each rank did so far."""

    def living(self) -> Iterator[psutil.Process]:
        """Its processes, except its own."""


def kill_agent(job: Struck) -> str:
    """SIGKILL for ``holdfast run``, as the out-of-memory killer would send it."""
    os.kill(job.process.pid, signal.SIGKILL)
    return f"SIGKILL to the agent, process {job.process.pid}"


def kill_watcher(job: Struck) -> str:
    """SIGKILL for the watcher beside the agent."""
    if job.run is None:
        raise InternalError("a watcher is to be killed before there is a run")
    facts: dict[str, Any] = msgspec.json.decode((job.run / "run.json").read_bytes())
    os.kill(facts["watcher"], signal.SIGKILL)
    return f"SIGKILL to the watcher, process {facts['watcher']}"


def kill_rank(job: Struck) -> str:
    """SIGKILL for rank 1."""
    pid = next(fact.pid for fact in reversed(job.traces[1]) if fact.pid)
    os.kill(pid, signal.SIGKILL)
    return f"SIGKILL to rank 1, process {pid}"


def warn(job: Struck) -> str:
    """SIGTERM for ``holdfast run``, as a scheduler sends it before it takes the machine away."""
    job.process.send_signal(signal.SIGTERM)
    return "SIGTERM to the agent"


def power_off(job: Struck) -> str:
    """SIGKILL for all that the job is, at once."""
    found = [*job.living(), psutil.Process(job.process.pid)] if job.process.poll() is None else list(job.living())
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    return f"SIGKILL to all {len(found)} processes"


def fill_disk(job: Struck) -> str:
    """Fill the file system of the checkpoints to the last byte."""
    with (job.folder / CHECKPOINTS / _FILLER).open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"\0" * (1 << 16)):
            pass
    return "the disk of the checkpoints is full"


def free_disk(job: Struck) -> str:
    """Give the room back."""
    (job.folder / CHECKPOINTS / _FILLER).unlink(missing_ok=True)
    return "the disk of the checkpoints has room again"


def flip(job: Struck) -> str:
    """Turn one bit in the middle of the largest file of the newest checkpoint, and kill rank 1."""
    target = _largest(job)
    with target.open("r+b") as stream:
        stream.seek(target.stat().st_size // 2)
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
    return f"one bit of {target.parent.name}/{target.name} turned; {kill_rank(job)}"


def truncate(job: Struck) -> str:
    """Cut that file to half its length, and kill rank 1."""
    target = _largest(job)
    os.truncate(target, target.stat().st_size // 2)
    return f"{target.parent.name}/{target.name} cut to half its length; {kill_rank(job)}"


def lose(job: Struck) -> str:
    """Delete that file, and kill rank 1."""
    target = _largest(job)
    target.unlink()
    return f"{target.parent.name}/{target.name} deleted; {kill_rank(job)}"


def lose_manifest(job: Struck) -> str:
    """Delete the manifest of the newest checkpoint, as if nobody had finished it, and kill rank 1."""
    target = _newest(job) / manifest.FILE
    target.unlink()
    return f"{target.parent.name}/{target.name} deleted; {kill_rank(job)}"


def _newest(job: Struck) -> Path:
    return manifest.newest_first(job.folder / CHECKPOINTS)[0]


def _largest(job: Struck) -> Path:
    files = [path for path in _newest(job).rglob("*") if path.is_file() and path.name != manifest.FILE]
    return max(files, key=lambda path: path.stat().st_size)


#: Kind -> what does it; each says in a few words what it did.
BLOWS: Mapping[str, Callable[[Struck], str]] = {
    "kill-agent": kill_agent,
    "kill-watcher": kill_watcher,
    "kill-rank": kill_rank,
    "warn": warn,
    "power-off": power_off,
    "fill-disk": fill_disk,
    "free-disk": free_disk,
    "flip": flip,
    "truncate": truncate,
    "lose": lose,
    "lose-manifest": lose_manifest,
}
