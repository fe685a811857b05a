"""Inside a spare process: import what the script will need, wait, and become a worker as if started at that moment.

It was started with a worker's command line, so that nothing has to be changed of that; it gets environment, folder,
mask and output of the worker whose place it takes. The agent's end of it is ``runtime/spares.py``.
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

from holdfast import settings
from holdfast.runtime import imported

READY = b"r"
#: The first thing that the agent says: a byte with the descriptors of stdout and stderr, then the length of the rest.
LENGTH_BYTES = 8
_NICE = 10
_SIGNAL_AT_PARENTS_END = 1  # prctl(2): PR_SET_PDEATHSIG
_CAP_SYS_NICE = 23
_OUT_OF_MEMORY_FIRST = "1000"
_ENVIRONMENT_AT = 47  # of what follows the name in /proc/pid/stat: where the environment of the start begins and ends


class Errand(msgspec.Struct, frozen=True):
    """What a spare process prepares for: the environment in which to import, and which modules from which files."""

    environment: dict[str, str]
    modules: dict[str, str]
    folder: str
    cuda: bool = False


class Role(msgspec.Struct, frozen=True):
    """What it becomes."""

    environment: dict[str, str]
    folder: str
    mask: int


def become_worker(descriptor: int) -> None:
    """Prepare, wait to be needed, and return as a worker. Ends the process where it is not needed, or of no use."""
    line = socket.socket(fileno=descriptor)
    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGKILL, 0, 0, 0)
    try:
        (errand_at,) = _descriptors(line, 1)
        with os.fdopen(errand_at, "rb") as file:
            errand = msgspec.json.decode(file.read(), type=Errand)
        memory, pace = _offer_memory(), os.getpriority(os.PRIO_PROCESS, 0)
        added = _prepare(errand)
        line.sendall(READY)
        out, err = _descriptors(line, 2)
        role = msgspec.json.decode(_read(line, int.from_bytes(_read(line, LENGTH_BYTES), "big")), type=Role)
    except (OSError, EOFError, ValueError, ImportError, msgspec.DecodeError) as error:
        sys.stderr.write(f"holdfast: a spare process gives up: {error}\n")
        os._exit(0)
    line.close()
    for given, at in ((out, 1), (err, 2)):
        os.dup2(given, at, inheritable=True)
        os.close(given)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(memory)
    _hurry(pace)
    os.umask(role.mask)
    os.chdir(role.folder)
    _take_on({**role.environment, **added})
    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGTERM, 0, 0, 0)


def _descriptors(line: socket.socket, count: int) -> list[int]:
    _, found, _, _ = socket.recv_fds(line, 1, count)
    if len(found) != count:
        raise EOFError("the agent is gone")
    return found


def _read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise EOFError("the agent is gone")
        data += part
    return data


def _prepare(errand: Errand) -> dict[str, str]:
    """Import, and open the device where that is wanted; the variables that this has set."""
    settings.take_on(errand.environment)
    own, sys.path[0] = sys.path[0], errand.folder
    if _may_come_back():
        os.nice(_NICE)
    try:
        imported.import_all(errand.modules)
    finally:
        sys.path[0] = own
    import torch  # noqa: PLC0415 - not before the environment is as it will be

    if errand.cuda and torch.cuda.is_available():
        torch.cuda.set_device(settings.count("LOCAL_RANK") % torch.cuda.device_count())
        torch.cuda.synchronize()
    elif torch.cuda.is_initialized():
        raise ValueError("an import has opened the device")
    now = settings.environment()
    return {name: value for name, value in now.items() if errand.environment.get(name) != value}


def _offer_memory() -> str:
    """Be the first to go where memory is short; what was said about that before."""
    file = Path("/proc/self/oom_score_adj")
    before = file.read_text().strip()
    with suppress(OSError):
        file.write_text(_OUT_OF_MEMORY_FIRST)
    return before


def _may_come_back() -> bool:
    """Whether this process may raise its priority again once it has lowered it."""
    status = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()
    return bool(status) and bool(int(status[0], 16) >> _CAP_SYS_NICE & 1)


def _hurry(pace: int) -> None:
    """Take back the lower priority, of every thread that an import started too."""
    if os.getpriority(os.PRIO_PROCESS, 0) != pace:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), pace)


def _take_on(environment: dict[str, str]) -> None:
    """The environment of a worker, also in what others see of it in /proc, where there is room."""
    ctypes.CDLL(None).clearenv()  # what stays the same would go on being read from where it is overwritten now
    settings.take_on({})
    settings.take_on(environment)
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = map(int, fields[_ENVIRONMENT_AT : _ENVIRONMENT_AT + 2])
        text = b"\0".join(f"{name}={value}".encode(errors="surrogateescape") for name, value in environment.items())
        if 0 < len(text) < end - begin:
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, text + b"\0", len(text) + 1)
