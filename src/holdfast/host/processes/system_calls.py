"""Reads the system call in which a process is blocked, and what it waits for.

/proc/<pid>/syscall has the number and arguments. Descriptors are resolved through /proc/<pid>/fd;
paths and lists of descriptors are read from the memory of the process (/proc/<pid>/mem, with the
same permission as ptrace).
"""

from __future__ import annotations

import os
import platform
import stat as modes
import struct
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.host.processes.proc import PROC, read_text


class _SystemCallTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names by number and machine, and calls with a path: the index of that argument."""

    names: dict[str, dict[int, str]]
    on_path: dict[str, int]


_TABLES = msgspec.json.decode(
    Path(__file__).with_name("system_calls.json").read_bytes(), type=_SystemCallTables
)
#: Calls whose first argument is the descriptor that is waited for.
_ON_DESCRIPTOR = frozenset(
    """
    read write close pread64 pwrite64 readv writev preadv pwritev sendfile getdents getdents64
    fsync fdatasync flock fcntl ioctl connect accept accept4 recvfrom recvmsg sendto sendmsg
    epoll_wait epoll_pwait epoll_pwait2
    """.split()
)
_STANDARD = {0: "standard input", 1: "standard output", 2: "standard error"}
_MAX_DESCRIPTORS = 16
_PATH_BYTES = 4096
_KINDS = (
    (modes.S_ISREG, "file"),
    (modes.S_ISDIR, "folder"),
    (modes.S_ISFIFO, "FIFO"),
    (modes.S_ISSOCK, "socket"),
    (modes.S_ISCHR, "device"),
    (modes.S_ISBLK, "device"),
)


class CallTarget(msgspec.Struct, frozen=True):
    """The target of a call; ``kind``: file, folder, FIFO, pipe, socket, device or other."""

    kind: str
    path: str
    descriptor: int | None = None

    def __str__(self) -> str:
        known = _STANDARD.get(self.descriptor) if self.descriptor is not None else None
        return f"{self.kind} {self.path}" + (f" ({known})" if known else "")


class SystemCall(msgspec.Struct, frozen=True):
    """A call by name: ``running`` if the thread is in no call, ``#451`` for an unknown number."""

    name: str
    targets: tuple[CallTarget, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} of {', '.join(map(str, self.targets))}" if self.targets else self.name

    @property
    def blocked_on(self) -> str | None:
        """The first file, folder, FIFO, pipe or device of the call, in words.

        None for sockets, locks and clocks.
        """
        return next(
            (str(target) for target in self.targets if target.kind not in ("socket", "other")), None
        )


def current_system_call(
    pid: int, proc: Path = PROC, machine: str = platform.machine()
) -> SystemCall | Unknown:
    """Return the system call of the main thread of ``pid``."""
    line = read_text(proc / str(pid) / "task" / str(pid) / "syscall")
    if isinstance(line, Unknown):
        return line
    words = line.split()
    if not words or words[0] == "running":
        return SystemCall("running")
    try:
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
    except ValueError:
        return Unknown(f"the system call of process {pid} has an unexpected format: {line[:80]!r}")
    if number < 0:
        return SystemCall("running")  # interrupted outside a call, for example by a page fault
    names = _TABLES.names.get(machine)
    if names is None:
        return Unknown(f"no table of system calls for {machine}")
    name = names.get(number, f"#{number}")
    return SystemCall(name, _targets(proc / str(pid), name, [*arguments, *[0] * 6]))


def _targets(process: Path, name: str, arguments: list[int]) -> tuple[CallTarget, ...]:
    if name in _ON_DESCRIPTOR:
        descriptors = [arguments[0] & 0xFFFFFFFF]
    elif name in _TABLES.on_path:
        return (_path_target(process, _string(process, arguments[_TABLES.on_path[name]])),)
    elif name in ("poll", "ppoll"):
        descriptors = _polled(process, arguments[0], arguments[1])
    elif name in ("select", "pselect6"):
        descriptors = _selected(process, arguments[0], arguments[1:4])
    else:
        return ()
    targets = (_descriptor_target(process, number) for number in descriptors)
    return tuple(target for target in targets if target is not None)


def _descriptor_target(process: Path, descriptor: int) -> CallTarget | None:
    link = process / "fd" / str(descriptor)
    try:
        path = str(link.readlink()).removesuffix(" (deleted)")
    except OSError:
        return None
    kind, colon, inside = path.partition(":")
    if colon and inside.startswith("["):  # pipe:[123], socket:[456], anon_inode:[eventpoll]
        return CallTarget(kind if kind in ("pipe", "socket") else "other", inside, descriptor)
    return CallTarget(_kind(link), path, descriptor)


def _path_target(process: Path, path: str | None) -> CallTarget:
    if path is None:
        return CallTarget("file", "(unreadable path)")
    if not path.startswith("/"):
        try:
            path = str((process / "cwd").readlink() / path)
        except OSError:
            return CallTarget("file", path)
    return CallTarget(_kind(path), path)


def _kind(path: Path | str) -> str:
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return "file"
    return next((name for test, name in _KINDS if test(mode)), "other")


def _memory(process: Path, address: int, size: int) -> bytes:
    """Read memory of the process; shorter or empty if unreadable."""
    try:
        with (process / "mem").open("rb", buffering=0) as memory:
            return os.pread(memory.fileno(), size, address)
    except (OSError, ValueError, OverflowError):
        return b""


def _string(process: Path, address: int) -> str | None:
    to_page_end = _PATH_BYTES - address % _PATH_BYTES  # the next page may not be mapped
    data = _memory(process, address, to_page_end)
    if b"\0" not in data and len(data) == to_page_end:
        data += _memory(process, address + to_page_end, _PATH_BYTES - to_page_end)
    text, end, _ = data.partition(b"\0")
    return os.fsdecode(text) if end and text else None


def _polled(process: Path, address: int, count: int) -> list[int]:
    """Return the non-negative descriptors of an array of ``struct pollfd`` (int, short, short)."""
    data = _memory(process, address, 8 * min(count, _MAX_DESCRIPTORS))
    whole = data[: len(data) // 8 * 8]
    return [descriptor for descriptor, _, _ in struct.iter_unpack("ihh", whole) if descriptor >= 0]


def _selected(process: Path, count: int, sets: list[int]) -> list[int]:
    """Return the descriptors in the three bit sets of select, unchanged while it waits."""
    descriptors: set[int] = set()
    for address in sets:
        bits = int.from_bytes(
            _memory(process, address, (min(count, 1024) + 7) // 8) if address else b"", "little"
        )
        descriptors |= {number for number in range(min(count, 1024)) if bits >> number & 1}
    return sorted(descriptors)[:_MAX_DESCRIPTORS]
