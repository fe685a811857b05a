"""Faults from outside of the ranks: what kills agents and watchers, damages files, or takes the machine away."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any, Protocol

import msgspec


class Struck(Protocol):
    """The job that is struck: its own process, its folder, and the folder of its run."""

    @property
    def process(self) -> Popen[bytes]:
        """``holdfast run``, which is the agent."""

    @property
    def folder(self) -> Path:
        """Where it was started."""

    @property
    def run(self) -> Path | None:
        """The folder of this run, once there is one."""


def kill_agent(job: Struck) -> str:
    """SIGKILL for ``holdfast run``, as the out-of-memory killer would send it."""
    os.kill(job.process.pid, signal.SIGKILL)
    return f"SIGKILL to the agent, process {job.process.pid}"


def kill_watcher(job: Struck) -> str:
    """SIGKILL for the watcher beside the agent."""
    assert job.run is not None, "the ranks run"  # noqa: S101
    facts: dict[str, Any] = msgspec.json.decode((job.run / "run.json").read_bytes())
    os.kill(facts["watcher"], signal.SIGKILL)
    return f"SIGKILL to the watcher, process {facts['watcher']}"


#: Kind -> what does it; each says in a few words what it did.
BLOWS: Mapping[str, Callable[[Struck], str]] = {"kill-agent": kill_agent, "kill-watcher": kill_watcher}
