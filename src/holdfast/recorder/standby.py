"""Inside a standby worker: import what the script will need, wait, and become a worker.

It was started with a worker's command line, which therefore needs no change; it takes over
environment, folder, umask and output of the worker that it replaces. The agent's side is
``launcher/elastic/standby_workers.py``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core import settings
from holdfast.recorder import imported_modules

READY = b"r"
#: The agent first sends one byte with the descriptors of stdout and stderr, then the message
#: length.
LENGTH_BYTES = 8
_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # prctl(2): PR_SET_PDEATHSIG
_CAP_SYS_NICE = 23
_MAX_OOM_SCORE_ADJ = "1000"
_ENV_START_FIELD = (
    47  # index after the name in /proc/pid/stat: start and end of the initial environment
)


class WorkerAssignment(msgspec.Struct, frozen=True):
    """What a standby worker prepares for: the environment for imports, and the modules by file."""

    environment: dict[str, str]
    modules: dict[str, str]
    folder: str
    cuda: bool = False


class WorkerRole(msgspec.Struct, frozen=True):
    """The worker that it becomes."""

    environment: dict[str, str]
    folder: str
    mask: int


def become_worker(descriptor: int) -> None:
    """Prepare, wait until needed, and return as a worker; exits if not needed or not usable."""
    connection = socket.socket(fileno=descriptor)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        (assignment_fd,) = _receive_descriptors(connection, 1)
        with os.fdopen(assignment_fd, "rb") as score_file:
            assignment = msgspec.json.decode(score_file.read(), type=WorkerAssignment)
        oom_score, priority = _raise_oom_score(), os.getpriority(os.PRIO_PROCESS, 0)
        added_variables = _prepare(assignment)
        connection.sendall(READY)
        out, err = _receive_descriptors(connection, 2)
        role = msgspec.json.decode(
            _receive_exactly(
                connection, int.from_bytes(_receive_exactly(connection, LENGTH_BYTES), "big")
            ),
            type=WorkerRole,
        )
    except (OSError, EOFError, ValueError, ImportError, msgspec.DecodeError) as error:
        sys.stderr.write(f"holdfast: standby worker exits: {error}\n")
        os._exit(0)
    connection.close()
    for descriptor_received, target_fd in ((out, 1), (err, 2)):
        os.dup2(descriptor_received, target_fd, inheritable=True)
        os.close(descriptor_received)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(oom_score)
    _restore_priority(priority)
    os.umask(role.mask)
    os.chdir(role.folder)
    _replace_environment({**role.environment, **added_variables})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _receive_descriptors(connection: socket.socket, count: int) -> list[int]:
    _, descriptors, _, _ = socket.recv_fds(connection, 1, count)
    if len(descriptors) != count:
        raise EOFError("the agent closed the connection")
    return descriptors


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError("the agent closed the connection")
        data += chunk
    return data


def _prepare(assignment: WorkerAssignment) -> dict[str, str]:
    """Import the modules, open the device if requested; return the variables this set."""
    settings.apply_environment(assignment.environment)
    previous_entry, sys.path[0] = sys.path[0], assignment.folder
    if _can_raise_priority():
        os.nice(_NICENESS)
    try:
        imported_modules.import_all(assignment.modules)
    finally:
        sys.path[0] = previous_entry
    import torch  # noqa: PLC0415 - the environment must be set first

    if assignment.cuda and torch.cuda.is_available():
        torch.cuda.set_device(settings.read_count("LOCAL_RANK") % torch.cuda.device_count())
        torch.cuda.synchronize()
    elif torch.cuda.is_initialized():
        raise ValueError("an import has initialized the GPU")
    environment_now = settings.current_environment()
    return {
        name: value
        for name, value in environment_now.items()
        if assignment.environment.get(name) != value
    }


def _raise_oom_score() -> str:
    """Make this process the first victim of the OOM killer; return the previous score."""
    score_file = Path("/proc/self/oom_score_adj")
    previous = score_file.read_text().strip()
    with suppress(OSError):
        score_file.write_text(_MAX_OOM_SCORE_ADJ)
    return previous


def _can_raise_priority() -> bool:
    """Return whether this process may raise its priority again after lowering it."""
    status = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()
    return bool(status) and bool(int(status[0], 16) >> _CAP_SYS_NICE & 1)


def _restore_priority(priority: int) -> None:
    """Restore the priority, also of every thread that an import started."""
    if os.getpriority(os.PRIO_PROCESS, 0) != priority:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), priority)


def _replace_environment(environment: dict[str, str]) -> None:
    """Set a worker's environment, also in /proc where the space suffices."""
    # Unchanged values would still be read from the memory that is overwritten below.
    ctypes.CDLL(None).clearenv()
    settings.apply_environment({})
    settings.apply_environment(environment)
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = map(int, fields[_ENV_START_FIELD : _ENV_START_FIELD + 2])
        text = b"\0".join(
            f"{name}={value}".encode(errors="surrogateescape")
            for name, value in environment.items()
        )
        if 0 < len(text) < end - begin:
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, text + b"\0", len(text) + 1)
