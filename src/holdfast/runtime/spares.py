"""Spare processes: a worker to be for each local rank, which has imported already what the script will import.

Interpreter and imports are most of what a restart costs. A spare is started once the first step of a generation is
over, with a worker's own command line, prepares itself (``runtime/warm.py``) and waits; at a restart it gets what the
new worker was to get: environment, folder, mask, output. Wherever something does not fit, a process is started afresh,
as torch does it. A spare dies with the agent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import msgspec
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from holdfast.runtime import imported
from holdfast.runtime.torchrun import BOOTSTRAP
from holdfast.runtime.warm import LENGTH_BYTES, READY, Errand, Role

#: What a worker may be told at its start without an import having depended on it.
_OF_A_START = ("HOLDFAST_", "TORCHELASTIC_", "MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_DEBUG_INFO_", "TORCH_FR_DUMP_")
#: As well, where torch alone was imported; others ask at their import which rank they are.
_OF_A_RANK = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE")
_ASK_NO_RANK = frozenset({"torch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec",
                          "typing_extensions", "psutil", "msgspec", "torchgen", "functorch", "yaml", "setuptools",
                          "pkg_resources", "_distutils_hack", "packaging", "holdfast", "cuda", "nvidia", "triton",
                          "xxhash"})  # fmt: skip
#: Part of the memory of the host (or its control group) that is left to the job.
_ROOM = 0.1
_SEND_LIMIT_S = 1.0


class Mode(StrEnum):
    """What is kept ready: nothing, processes, or processes that have opened their GPU."""

    OFF = "off"
    WARM = "warm"
    CUDA = "cuda"


@dataclass(frozen=True)
class Start:
    """How a worker was started: its command line and its whole environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass
class _Spare:
    process: subprocess.Popen[bytes]
    line: socket.socket
    start: Start
    any_rank: bool
    ready: bool = False

    def look(self) -> None:
        """Take note if it is ready by now."""
        with suppress(OSError):
            self.ready = self.ready or self.line.recv(1, socket.MSG_DONTWAIT) == READY

    def fits(self, start: Start) -> bool:
        """Whether it can become what ``start`` would start."""
        mine, theirs = self.start.environment, start.environment
        free = (*_OF_A_START, *(_OF_A_RANK if self.any_rank else ()))
        changed = (name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        same = all(name.startswith(_OF_A_START) or name in free for name in changed)
        return same and self.start.command == start.command

    def end(self) -> None:
        self.line.close()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Spares:
    """The spare processes of one agent, by local rank. ``note`` is told once why there are none.

    ``room`` tells how many bytes of memory this host can still give, and how many it has; None where nobody knows.
    """

    def __init__(self, mode: Mode, note: Callable[[str], None], room: Callable[[], tuple[int, int] | None]) -> None:
        self.mode = mode
        self._note = note
        self._room = room
        self._spares: dict[int, _Spare] = {}
        self._wanted: dict[int, Start] = {}

    @property
    def pids(self) -> frozenset[int]:
        """Processes that wait."""
        return frozenset(spare.process.pid for spare in self._spares.values())

    def want(self, local_rank: int, start: Start) -> None:
        """A worker was started so: a spare for its place is wanted."""
        if self.mode is not Mode.OFF and BOOTSTRAP in start.command:
            self._wanted[local_rank] = start

    def tick(self) -> None:
        """Start one spare more, once its worker has done a step; one at a time, so that training hardly notices."""
        for spare in self._spares.values():
            spare.look()
        if any(not spare.ready and spare.process.poll() is None for spare in self._spares.values()):
            return
        for local_rank, start in list(self._wanted.items()):
            box = start.environment.get("HOLDFAST_BOX", "")
            with suppress(FileNotFoundError, msgspec.DecodeError):
                needed = msgspec.json.decode(Path(f"{box}{imported.SUFFIX}").read_bytes(), type=imported.Imports)
                del self._wanted[local_rank]
                if self._may(needed, start):
                    self._end(local_rank)
                    self._spares[local_rank] = self._start(start, needed)
                return

    def _may(self, needed: imported.Imports, start: Start) -> bool:
        wanted = needed.size * max(int(start.environment.get("LOCAL_WORLD_SIZE", "1")), 1)
        why = needed.why_not or _shortage(wanted, self._room())
        if why:
            self._wanted.clear()
            self.mode = Mode.OFF
            self._note(f"no spare processes: {why}; a restart begins with fresh ones")
        return not why

    def _start(self, start: Start, needed: imported.Imports) -> _Spare:
        mine, theirs = socket.socketpair()
        with theirs:
            shown = {name: text for name, text in start.environment.items() if name not in ("RANK", "HOLDFAST_BOX")}
            room = sum(len(name) + len(text) for name, text in start.environment.items()) + 4096
            process = subprocess.Popen(
                start.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                env={**shown, "HOLDFAST_SPARE": str(theirs.fileno()), "ROOM_FOR_VARIABLES": " " * room},
                pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        errand = Errand(
            environment=dict(start.environment), modules=needed.modules, folder=_folder_of(start.command),
            cuda=self.mode is Mode.CUDA,
        )  # fmt: skip
        mine.settimeout(_SEND_LIMIT_S)
        with open(os.memfd_create("errand"), "w+b") as file, suppress(OSError):  # noqa: PTH123 - it has no path
            file.write(msgspec.json.encode(errand))
            file.seek(0)
            socket.send_fds(mine, [b"e"], [file.fileno()])
        packages = {name.partition(".")[0] for name in needed.modules}
        return _Spare(process, mine, start, any_rank=packages <= _ASK_NO_RANK)

    def take(self, local_rank: int, start: Start, out: TextIO | None, err: TextIO | None) -> Any:
        """Make the spare of ``local_rank`` the worker that ``start`` describes; None where there is none that can."""
        spare = self._spares.pop(local_rank, None)
        if spare is None:
            return None
        spare.look()
        if spare.ready and spare.process.poll() is None and spare.fits(start):
            mask = os.umask(0)
            os.umask(mask)
            role = msgspec.json.encode(Role(environment=dict(start.environment), folder=str(Path.cwd()), mask=mask))
            try:
                socket.send_fds(spare.line, [b"r"], [out.fileno() if out else 1, err.fileno() if err else 2])
                spare.line.sendall(len(role).to_bytes(LENGTH_BYTES, "big") + role)
            except OSError:
                pass
            else:
                spare.line.close()
                return spare.process
        spare.end()
        return None

    def close(self) -> None:
        """End them all."""
        self._wanted.clear()
        for local_rank in list(self._spares):
            self._end(local_rank)

    def _end(self, local_rank: int) -> None:
        if local_rank in self._spares:
            self._spares.pop(local_rank).end()


@contextmanager
def handed_out(spares: Spares) -> Iterator[None]:
    """While workers are started in the with-block, torch is given spares where they fit, and its own way elsewhere."""
    torchs = getattr(api, "get_subprocess_handler", None)
    if torchs is None or spares.mode is Mode.OFF or not hasattr(SubprocessHandler, "_popen"):
        yield
        return

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            start, place = Start(tuple(args), env), int(self.local_rank_id)
            spares.want(place, start)
            return spares.take(place, start, self._stdout, self._stderr) or super()._popen(args, env)

    setattr(api, "get_subprocess_handler", Handler)  # noqa: B010 - mypy will not have a function assigned to
    try:
        yield
    finally:
        setattr(api, "get_subprocess_handler", torchs)  # noqa: B010


def _folder_of(command: Sequence[str]) -> str:
    """Where the script's own imports begin: its folder, or for a module the working directory."""
    target = command[command.index(BOOTSTRAP) + 1]
    return os.getcwd() if target == "-m" else str(Path(target).resolve().parent)  # noqa: PTH109 - as python -m


def _shortage(wanted: int, room: tuple[int, int] | None) -> str:
    """Why there is no room for ``wanted`` bytes; empty where there is."""
    if room is None:
        return "how much memory is left cannot be seen"
    left, total = room
    if wanted <= left - _ROOM * total:
        return ""
    return f"they would take {wanted / 1e9:.1f} GB of the {left / 1e9:.1f} GB of memory that are left"
