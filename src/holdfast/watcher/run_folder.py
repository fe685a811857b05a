"""The files of a run: logs, incidents and, while it runs, one trace file per rank in shared memory.

    holdfast-runs/20260107-141530-3fa2/     run.json, command.json, logs/, incidents/<n>/,
                                            watcher.log
    /dev/shm/holdfast-20260107-141530-3fa2/ rank<k>.trace, agent (the owner of the folder)

Trace files of a successful run are deleted, those of a failed run are moved to its incident; none
remain in shared memory.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core import trace_file
from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import InvalidValue
from holdfast.core.text import os_error_reason
from holdfast.watcher.shared_memory_cleanup import SHM

#: Free shared memory required, as a multiple of the trace files: the rest is for data loaders.
FREE_SPACE_FACTOR = 2.0
COMMAND = "command.json"


class RunCommand(msgspec.Struct, frozen=True):
    """The command of a run, in its ``command.json``, without secrets.

    ``script`` is the script with its arguments.
    """

    schema: str = "holdfast/1"
    launch_options: tuple[str, ...] = ()
    script: tuple[str, ...] = ()


class FolderOwner(msgspec.Struct, frozen=True):
    """The process that owns a folder in shared memory: pid, start in clock ticks, pid namespace."""

    pid: int
    started: int
    namespace: str

    @classmethod
    def current(cls) -> FolderOwner:
        """Return this process."""
        return cls(os.getpid(), trace_file.process_start_ticks(os.getpid()), _pid_namespace())

    def has_exited(self) -> bool:
        """Return whether the process ended; False in another namespace (a container)."""
        return (
            self.namespace == _pid_namespace()
            and trace_file.process_start_ticks(self.pid) != self.started
        )


class RunFolder:
    """The folder of one run of this node; the constructor creates it.

    Raises:
        InvalidValue: the folder cannot be created.
    """

    def __init__(self, base: Path, *, workers: int, records: int, shm: Path = SHM) -> None:
        self.name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        self.path = base / self.name
        self.logs = self.path / "logs"
        self.incidents = self.path / "incidents"
        try:
            self.logs.mkdir(parents=True)
            self.incidents.mkdir()
        except OSError as error:
            raise InvalidValue(
                "--run-dir", why=_describe(base, error), next_step="name a writable folder"
            ) from error
        remove_stale_folders(shm)
        #: Why the trace files are not in shared memory; empty if they are.
        self.trouble = _lack_of_space(shm, workers * trace_bytes(records) * FREE_SPACE_FACTOR)
        self.traces = self.path / "traces"
        if not self.trouble:
            self._use_shared_memory(shm / f"holdfast-{self.name}")

    def _use_shared_memory(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700)
            own_folder(folder)
            self.traces = folder
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self.trouble = _describe(folder.parent, error)

    def trace_file(self, rank: int) -> Path:
        """Return the path of the trace file of ``rank`` while the rank runs."""
        return (self.traces / f"rank{rank}.trace").absolute()

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the run atomically."""
        write_atomic(self.path / name, content)

    def new_incident(self) -> Path:
        """Create the folder of the next incident."""
        return create_numbered_folder(self.incidents)

    def keep_traces(self, into: Path) -> str:
        """Move the trace files into a folder; see :func:`keep_traces`."""
        return keep_traces(self.traces, into)

    def remove_traces(self) -> None:
        """Delete the trace files and the files beside them."""
        remove_traces(self.traces)

    def close(self) -> None:
        """Remove the folder in shared memory. Idempotent."""
        shutil.rmtree(self.traces, ignore_errors=True)


def create_numbered_folder(parent: Path) -> Path:
    """Create the folder with the lowest free number in ``parent``."""
    number = 0
    while True:
        folder = parent / str(number)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def own_folder(folder: Path) -> None:
    """Make this process the owner of a folder in shared memory, until it exits."""
    (folder / "agent").write_bytes(msgspec.json.encode(FolderOwner.current()))


def keep_traces(traces: Path, into: Path) -> str:
    """Move trace files into a folder, unless it has a copy already, and delete the rest.

    Return why a file could not be moved, else an empty text.
    """
    error_text = ""
    for trace in sorted(traces.glob("rank*.trace")):
        kept = into / trace.name
        try:
            into.mkdir(parents=True, exist_ok=True)
            if not kept.exists():
                shutil.move(trace, kept)
        except OSError as error:
            error_text = _describe(kept, error)
    remove_traces(traces)
    return error_text


def remove_traces(traces: Path) -> None:
    """Delete the trace files in a folder and the files beside them."""
    for file in traces.glob("rank*"):
        with suppress(OSError):
            file.unlink()


def trace_bytes(records: int) -> int:
    """Return the size of a trace file with a ring of ``records`` calls."""
    areas = trace_file.GROUPS * trace_file.GROUP_BYTES + trace_file.NOTES_BYTES
    return trace_file.HEADER_BYTES + areas + records * trace_file.RECORD_BYTES


def remove_stale_folders(shm: Path) -> None:
    """Remove the folders of runs whose agent was killed, if they belong to this user."""
    for folder in shm.glob("holdfast-*"):
        with suppress(OSError, msgspec.DecodeError):
            owner = msgspec.json.decode((folder / "agent").read_bytes(), type=FolderOwner)
            if owner.has_exited() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder)


def _lack_of_space(shm: Path, required_bytes: float) -> str:
    try:
        state = os.statvfs(shm)
    except OSError as error:
        return _describe(shm, error)
    free = state.f_bavail * state.f_frsize
    if free >= required_bytes:
        return ""
    return f"{shm} has {free / 1e6:.1f} MB free, {required_bytes / 1e6:.1f} MB are required"


def _describe(path: Path, error: OSError) -> str:
    return f"{path}: {os_error_reason(error)}"


def _pid_namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""
