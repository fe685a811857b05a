"""Ranks for tests that cost a fork each: a process that has imported torch once, and forks for every rank.

An import of torch takes longer than most tests. The nursery has one thread and no process group, so that its children
are as fresh as processes of their own; each gets the environment, folder and output of the test that asks for it.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_PR_SET_PDEATHSIG = 1  # prctl(2)
_START_LIMIT_S = 120
_MOST_BYTES = 1 << 20
#: What ranks of tests import beside torch itself.
_IMPORTS = ("torch.distributed.fsdp", "torch.nn.parallel", "torch.distributed.nn.functional", "holdfast.runtime.comm",
            "holdfast.runtime.evaluate", "holdfast.runtime.checkpoint")  # fmt: skip


class Child:
    """A forked process: what of ``subprocess.Popen`` tests need."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid

    def wait(self, limit_s: float) -> int:
        """Its exit status (negative: by that signal). Raises TimeoutError."""
        return self._nursery.status(self.pid, limit_s)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self._nursery.ask("kill", self.pid)


class Nursery:
    """The test's end of the line."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def start(self, call: Callable[..., None], *arguments: Any) -> Child:
        """Fork a child that calls a function of a module, found by its name, and ends."""
        order = (call.__module__, call.__qualname__, arguments, dict(os.environ))
        socket.send_fds(self._line, [pickle.dumps(("start", order))], [1, 2])
        until = time.monotonic() + _START_LIMIT_S
        while (started := self._hear(until)) is None:
            pass
        return Child(self, started)

    def ask(self, kind: str, what: Any) -> None:
        self._line.send(pickle.dumps((kind, what)))

    def status(self, pid: int, limit_s: float) -> int:
        until = time.monotonic() + limit_s
        while pid not in self._codes:
            self._hear(until)
        return self._codes[pid]

    def _hear(self, until: float) -> int | None:
        """The id of a child that was started, or None where one has ended, which is noted."""
        self._line.settimeout(max(until - time.monotonic(), 0.001))
        data = self._line.recv(_MOST_BYTES)
        assert data, "the nursery is gone"
        kind, pid, code = pickle.loads(data)
        if kind == "started":
            return int(pid)
        self._codes[pid] = code
        return None

    def close(self) -> None:
        self._line.close()
        self.process.wait()


_nurseries: list[Nursery] = []


def nursery() -> Nursery:
    """The one of this test process, started when it is first asked for, and again where a test has ended it."""
    if not _nurseries or _nurseries[-1].process.poll() is not None:
        made = Nursery()
        _nurseries.append(made)
        atexit.register(made.close)
    return _nurseries[-1]


# ---- the other end


def main(handle: int) -> None:
    """Serve until the test process is gone."""
    import torch

    torch.set_num_threads(1)
    for name in _IMPORTS:
        importlib.import_module(name)
    line = socket.socket(fileno=handle)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    open_ = True
    while open_:
        ready, _, _ = select.select([line, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        _reap(line, children)
        open_ = line not in ready or _obey(line, children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _obey(line: socket.socket, children: set[int]) -> bool:
    """Carry out one order; False where nobody is left to give any."""
    data, files, _, _ = socket.recv_fds(line, _MOST_BYTES, 2)
    if not data:
        return False
    kind, what = pickle.loads(data)
    if kind == "kill" and what in children:
        os.kill(what, signal.SIGKILL)
    elif kind == "start":
        pid = os.fork()
        if pid == 0:
            line.close()
            _be_child(what, files)
        children.add(pid)
        for file in files:
            os.close(file)
        line.send(pickle.dumps(("started", pid, None)))
    return True


def _reap(line: socket.socket, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        line.send(pickle.dumps(("ended", pid, os.waitstatus_to_exitcode(status))))


def _be_child(order: tuple[Any, ...], files: list[int]) -> None:
    """Never returns."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        module, name, arguments, environment = order
        os.environ.clear()
        os.environ.update(environment)
        for number, file in enumerate(files, start=1):
            os.dup2(file, number)
            os.close(file)
        getattr(importlib.import_module(module), name)(*arguments)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - it is shown, as Python would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]))
