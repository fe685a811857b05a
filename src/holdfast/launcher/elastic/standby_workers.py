"""Standby workers: one process per local rank that has already imported what the script imports.

Interpreter start and imports are most of the time of a restart. A standby worker is started after
the first step of a generation, with a worker's own command line; it prepares itself
(``recorder/standby.py``) and waits. At a restart it gets environment, folder, umask and output of
the new worker. If anything does not match, torch starts a new process instead. Standby workers die
with the agent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TextIO

import msgspec

from holdfast.core import settings
from holdfast.launcher.elastic.command_line import BOOTSTRAP
from holdfast.recorder import imported_modules
from holdfast.recorder.imported_modules import ImportedModules
from holdfast.recorder.standby import LENGTH_BYTES, READY, WorkerAssignment, WorkerRole

#: Prefixes of variables that differ between starts and that no import depends on.
_START_VARIABLES = (
    "HOLDFAST_",
    "TORCHELASTIC_",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCH_NCCL_DEBUG_INFO_",
    "TORCH_FR_DUMP_",
)
#: Variables that may differ, too, if only rank-independent packages were imported.
_RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
)
#: Packages that do not read the rank when they are imported; others may.
# fmt: off
_RANK_INDEPENDENT_PACKAGES = frozenset({
    "torch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec",
    "typing_extensions", "psutil", "msgspec", "torchgen", "functorch", "yaml", "setuptools",
    "pkg_resources", "_distutils_hack", "packaging", "holdfast", "cuda", "nvidia", "triton",
    "xxhash",
})
# fmt: on
#: Fraction of the host's (or cgroup's) memory that standby workers leave free.
_RESERVED_MEMORY = 0.1
_SEND_TIMEOUT_S = 1.0


class StandbyMode(StrEnum):
    """What a standby worker does in advance."""

    OFF = "off"  #: there are none
    WARM = "warm"  #: imports
    CUDA = "cuda"  #: imports, and opens its GPU


@dataclass(frozen=True)
class WorkerCommand:
    """How a worker is started: its command line and its whole environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass
class _StandbyWorker:
    process: subprocess.Popen[bytes]
    connection: socket.socket
    command: WorkerCommand
    rank_independent: bool
    ready: bool = False

    def poll_ready(self) -> None:
        with suppress(OSError):
            self.ready = self.ready or self.connection.recv(1, socket.MSG_DONTWAIT) == READY

    def can_become(self, command: WorkerCommand) -> bool:
        mine, theirs = self.command.environment, command.environment
        may_change = _RANK_VARIABLES if self.rank_independent else ()
        changed = (
            name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)
        )
        return self.command.arguments == command.arguments and all(
            name.startswith(_START_VARIABLES) or name in may_change for name in changed
        )

    def kill(self) -> None:
        self.connection.close()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class StandbyPool:
    """The standby workers of one agent, by local rank.

    ``notify`` prints once why there are none. ``available_memory`` returns available and total
    memory of this host in bytes; None if unknown.
    """

    def __init__(
        self,
        mode: StandbyMode,
        notify: Callable[[str], None],
        available_memory: Callable[[], tuple[int, int] | None],
    ) -> None:
        self.mode = mode
        self._notify = notify
        self._available_memory = available_memory
        self._workers: dict[int, _StandbyWorker] = {}
        self._requested: dict[int, WorkerCommand] = {}

    @property
    def pids(self) -> frozenset[int]:
        """Return the process ids of the standby workers."""
        return frozenset(worker.process.pid for worker in self._workers.values())

    def request(self, local_rank: int, command: WorkerCommand) -> None:
        """Request a standby worker for a worker that was started with ``command``."""
        if self.mode is not StandbyMode.OFF and BOOTSTRAP in command.arguments:
            self._requested[local_rank] = command

    def tick(self) -> None:
        """Start the next standby worker whose worker has completed a step.

        One at a time, to disturb training as little as possible.
        """
        for worker in self._workers.values():
            worker.poll_ready()
        if any(
            not worker.ready and worker.process.poll() is None for worker in self._workers.values()
        ):
            return
        for local_rank, command in list(self._requested.items()):
            trace_file = command.environment.get("HOLDFAST_TRACE", "")
            with suppress(FileNotFoundError, msgspec.DecodeError):
                imported = msgspec.json.decode(
                    Path(f"{trace_file}{imported_modules.SUFFIX}").read_bytes(),
                    type=ImportedModules,
                )
                del self._requested[local_rank]
                if self._can_start(imported, command):
                    self._kill(local_rank)
                    self._workers[local_rank] = self._start(command, imported)
                return

    def _can_start(self, imported: ImportedModules, command: WorkerCommand) -> bool:
        local_ranks = max(int(command.environment.get("LOCAL_WORLD_SIZE", "1")), 1)
        why = imported.why_not or _memory_shortage(
            imported.size * local_ranks, self._available_memory()
        )
        if why:
            self._requested.clear()
            self.mode = StandbyMode.OFF
            self._notify(f"no standby workers: {why}; restarts use new processes")
        return not why

    def _start(self, command: WorkerCommand, imported: ImportedModules) -> _StandbyWorker:
        connection, remote = socket.socketpair()
        with remote:
            # The worker later writes its own environment over this one, which must be large enough.
            spare_bytes = 4096 + sum(
                map(len, (*command.environment, *command.environment.values()))
            )
            environment = {
                **command.environment,
                "HOLDFAST_SPARE": str(remote.fileno()),
                "PADDING_FOR_ENVIRONMENT": " " * spare_bytes,
            }
            for name in ("RANK", *settings.all_names("HOLDFAST_TRACE")):
                environment.pop(name, None)
            process = subprocess.Popen(
                command.arguments,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
                pass_fds=(remote.fileno(),),
            )
        assignment = WorkerAssignment(
            environment=dict(command.environment),
            modules=imported.modules,
            folder=_import_folder(command.arguments),
            cuda=self.mode is StandbyMode.CUDA,
        )
        connection.settimeout(_SEND_TIMEOUT_S)
        descriptor = os.memfd_create("assignment")
        with os.fdopen(descriptor, "w+b") as file, suppress(OSError):
            file.write(msgspec.json.encode(assignment))
            file.seek(0)
            socket.send_fds(connection, [b"e"], [descriptor])
        packages = {name.partition(".")[0] for name in imported.modules}
        return _StandbyWorker(
            process, connection, command, rank_independent=packages <= _RANK_INDEPENDENT_PACKAGES
        )

    def assign(
        self, local_rank: int, command: WorkerCommand, out: TextIO | None, err: TextIO | None
    ) -> subprocess.Popen[bytes] | None:
        """Make the standby worker of ``local_rank`` the worker of ``command``.

        Returns its process; None if there is none that can become this worker.
        """
        worker = self._workers.pop(local_rank, None)
        if worker is None:
            return None
        worker.poll_ready()
        if worker.ready and worker.process.poll() is None and worker.can_become(command):
            mask = os.umask(0)
            os.umask(mask)
            role = msgspec.json.encode(
                WorkerRole(environment=dict(command.environment), folder=str(Path.cwd()), mask=mask)
            )
            outputs = [out.fileno() if out else 1, err.fileno() if err else 2]
            with suppress(OSError):
                socket.send_fds(worker.connection, [b"r"], outputs)
                worker.connection.sendall(len(role).to_bytes(LENGTH_BYTES, "big") + role)
                worker.connection.close()
                return worker.process
        worker.kill()
        return None

    def close(self) -> None:
        """Kill all standby workers."""
        self._requested.clear()
        for local_rank in list(self._workers):
            self._kill(local_rank)

    def _kill(self, local_rank: int) -> None:
        if local_rank in self._workers:
            self._workers.pop(local_rank).kill()


def _import_folder(arguments: Sequence[str]) -> str:
    """Return the script's import root: its folder, or the working directory for a module."""
    target = arguments[arguments.index(BOOTSTRAP) + 1]
    return str(Path.cwd() if target == "-m" else Path(target).resolve().parent)


def _memory_shortage(wanted: int, memory: tuple[int, int] | None) -> str:
    """Return why ``wanted`` bytes are not available; '' if they are."""
    if memory is None:
        return "the available memory is unknown"
    available, total = memory
    if wanted <= available - _RESERVED_MEMORY * total:
        return ""
    return f"they need {wanted / 1e9:.1f} GB; {available / 1e9:.1f} GB of memory are available"
