"""Start ranks of tests by forking a server process that has imported torch.

Importing torch, and what an optimizer imports with it, takes about 5 s of CPU time, longer than
most tests. The server has one thread and no process group, so its children are in the same state as
new processes. Each child is a real process in its own process group, with its own environment, working
folder, standard output and standard error. It exits without running exit handlers, so tests of exit
handlers must start an interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import pickle
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

ROOT = Path(__file__).parents[1]
_PR_SET_PDEATHSIG = 1  # prctl(2)
_START_LIMIT_S = 120
_MAX_MESSAGE_BYTES = 1 << 20
#: Modules that every server imports: those of torch and holdfast that ranks of tests use.
_IMPORTS = (
    "torch",
    "torch._dynamo",  # every optimizer imports it: 2.8 s of CPU time
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.distributed.nn.functional",
    "holdfast.training.collectives",
    "holdfast.training.evaluate",
    "holdfast.training.checkpoint",
    # `holdfast run`, see tests/process/launched.py
    "torch.distributed.run",
    "holdfast.cli.run",
    "holdfast.launcher.agent",
)


class Child(msgspec.Struct, frozen=True):
    """A forked process, with the part of the interface of ``subprocess.Popen`` that tests need."""

    server: ForkServer
    pid: int

    def wait(self, limit_s: float) -> int:
        """Return the exit status, negative for a signal. Raises TimeoutError."""
        return self.server.wait(self.pid, limit_s)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the child runs."""
        return self.server.poll(self.pid)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the child has exited."""
        self.server.send("signal", (self.pid, int(number)))

    def kill(self) -> None:
        """Send SIGKILL, unless the child has exited."""
        self.send_signal(signal.SIGKILL)


class _StartRequest(msgspec.Struct, frozen=True):
    """A request to start a child; its open files are sent with the message."""

    module: str
    function: str
    arguments: tuple[Any, ...]
    environment: dict[str, str]
    folder: str


class ForkServer:
    """A server process, used from the test process.

    Args:
        extra_imports: modules that it imports besides torch.
    """

    def __init__(self, *extra_imports: str) -> None:
        self._socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._statuses: dict[int, int] = {}
        number = str(other_end.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", number, *extra_imports],
            cwd=ROOT,
            pass_fds=[other_end.fileno()],
            # A process of several threads cannot be forked; DeepSpeed would search for a GPU.
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        )
        other_end.close()

    def start(
        self,
        function: Callable[..., None],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        stdin: IO[Any] | None = None,
    ) -> Child:
        """Fork a child that calls a module-level function and exits.

        Environment, working folder and output are those of the test process by default; standard
        input is empty.
        """
        request = _StartRequest(
            module=function.__module__,
            function=function.__qualname__,
            arguments=arguments,
            environment=dict(os.environ if environment is None else environment),
            folder=str(folder or Path.cwd()),
        )
        with Path(os.devnull).open() as empty:
            files = [(stdin or empty).fileno()]
            files += [stdout.fileno() if stdout else 1, stderr.fileno() if stderr else 2]
            socket.send_fds(self._socket, [pickle.dumps(("start", request))], files)
        deadline = time.monotonic() + _START_LIMIT_S
        while (pid := self._receive(deadline)) is None:
            pass
        return Child(self, pid)

    def start_program(self, *command: object, **options: Any) -> Child:
        """Fork a child that runs ``-m MODULE …`` or ``SCRIPT …`` as Python would run it."""
        return self.start(run_program, *map(str, command), **options)

    def send(self, kind: str, content: Any) -> None:
        self._socket.send(pickle.dumps((kind, content)))

    def wait(self, pid: int, limit_s: float) -> int:
        deadline = time.monotonic() + limit_s
        while pid not in self._statuses:
            self._receive(deadline)
        return self._statuses[pid]

    def poll(self, pid: int) -> int | None:
        with suppress(TimeoutError):
            while pid not in self._statuses:
                self._receive(time.monotonic())
        return self._statuses.get(pid)

    def _receive(self, deadline: float) -> int | None:
        """Return the process id of a started child; record an exit status and return None."""
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        data = self._socket.recv(_MAX_MESSAGE_BYTES)
        assert data, "the fork server has exited"
        kind, pid, status = pickle.loads(data)
        if kind == "started":
            self._statuses.pop(pid, None)  # of an earlier process with this number
            return int(pid)
        self._statuses[pid] = status
        return None

    def close(self) -> None:
        self._socket.close()
        self.process.wait()


_servers: dict[tuple[str, ...], ForkServer] = {}


def fork_server(*extra_imports: str) -> ForkServer:
    """Return this test process's server with these imports, started on first use.

    A new one replaces a server that a test has killed.
    """
    server = _servers.get(extra_imports)
    if server is None or server.process.poll() is not None:
        server = _servers[extra_imports] = ForkServer(*extra_imports)
        atexit.register(server.close)
    return server


# ---- the server process


def main(number: int, *extra_imports: str) -> None:
    """Serve requests until the test process has exited."""
    for name in (*_IMPORTS, *extra_imports):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, (
        "a process of several threads cannot be forked"
    )
    connection = socket.socket(fileno=number)
    wakeup, wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    connected = True
    with suppress(ConnectionError):  # the test process has exited
        while connected:
            ready, _, _ = select.select([connection, wakeup], [], [])
            if wakeup in ready:
                os.read(wakeup, 4096)
            _reap(connection, children)
            connected = connection not in ready or _handle(connection, children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _handle(connection: socket.socket, children: set[int]) -> bool:
    """Handle one request; return False if the test process has exited."""
    data, files, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 3)
    if not data:
        return False
    kind, content = pickle.loads(data)
    if kind == "signal" and content[0] in children:
        os.kill(*content)
    elif kind == "start":
        pid = os.fork()
        if pid == 0:
            connection.close()
            _run_child(content, files)
        children.add(pid)
        for file in files:
            os.close(file)
        connection.send(pickle.dumps(("started", pid, None)))
    return True


def _reap(connection: socket.socket, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        connection.send(pickle.dumps(("ended", pid, os.waitstatus_to_exitcode(status))))


# ---- the child


def _run_child(request: _StartRequest, files: list[int]) -> None:
    """Turn this process into the requested one; never return."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        random.seed()
        getattr(importlib.import_module(request.module), request.function)(*request.arguments)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - reported as Python does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_program(*command: str) -> None:
    """Run ``-m MODULE …`` or ``SCRIPT …`` as ``__main__``."""
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
