"""Start ranks of tests by forking a server process that has imported torch.

Importing torch, and what an optimizer imports with it, takes about 5 s of CPU time, longer than
most tests. All servers of a test run, one per test process, are forked of one process that imports
it once. A server has one thread and no process group, so its children are in the same state as
new processes. Each child is a real process in its own process group, with its own environment, working
folder, standard output and standard error, and on request in the namespaces of another process. A
program that it runs has its own command line and environment in /proc, too. It exits without running
exit handlers, so tests of exit handlers must start an interpreter.
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
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

ROOT = Path(__file__).parents[1]
_PR_SET_PDEATHSIG = 1  # prctl(2)
_START_LIMIT_S = 120
_MAX_MESSAGE_BYTES = 1 << 20
_WAIT_S, _END_LIMIT_S = 0.01, 20
#: Space for the command line and the environment of a child in /proc.
_PADDING = " " * (1 << 14)
#: Index after the name in /proc/pid/stat: start and end of command line and environment.
_ARGUMENTS_FIELD, _ENVIRONMENT_FIELD = 45, 47
#: Namespaces in /proc/pid/ns, with their flags of setns(2).
_NAMESPACES = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "pid": 0x20000000,
}
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
    "holdfast.watcher.process",
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
    inside: int


class ForkServer:
    """A server process, used from all threads of a test process.

    Args:
        extra_imports: modules that it imports besides torch.
    """

    def __init__(self, *extra_imports: str) -> None:
        self._socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._statuses: dict[int, int] = {}
        self._lock = threading.Lock()
        with other_end, _connect() as template:
            template.settimeout(_START_LIMIT_S)
            socket.send_fds(template, [pickle.dumps(extra_imports)], [other_end.fileno()])
            self._process = os.pidfd_open(int(template.recv(64)))

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return not select.select([self._process], [], [], 0)[0]

    def start(
        self,
        function: Callable[..., None],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        stdin: IO[Any] | None = None,
        inside: int = 0,
    ) -> Child:
        """Fork a child that calls a module-level function and exits.

        Environment, working folder and output are those of the test process by default; standard
        input is empty. ``inside`` is a process whose namespaces it enters; then a second process
        calls the function, and the first one returns its exit status.
        """
        request = _StartRequest(
            module=function.__module__,
            function=function.__qualname__,
            arguments=arguments,
            environment=dict(os.environ if environment is None else environment),
            folder=str(folder or Path.cwd()),
            inside=inside,
        )
        with self._lock, Path(os.devnull).open() as empty:
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
        while (status := self.poll(pid)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} has not ended after {limit_s:.0f} s")
            time.sleep(_WAIT_S)
        return status

    def poll(self, pid: int) -> int | None:
        with self._lock, suppress(TimeoutError):
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
        """End the server and its children."""
        self._socket.close()
        select.select([self._process], [], [], _END_LIMIT_S)


_servers: dict[tuple[str, ...], ForkServer] = {}


def fork_server(*extra_imports: str) -> ForkServer:
    """Return this test process's server with these imports, started on first use.

    A new one replaces a server that a test has killed.
    """
    server = _servers.get(extra_imports)
    if server is None or not server.alive:
        server = _servers[extra_imports] = ForkServer(*extra_imports)
        atexit.register(server.close)
    return server


# ---- the template: one process per test run, of which all servers are forked


def _connect() -> socket.socket:
    """Return a connection to the template, which is started on first use."""
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    process, deadline = None, time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(_address(owner))
        except ConnectionRefusedError:
            connection.close()
        else:
            if process is not None:
                process.returncode = 0  # it may outlive this process, which never waits for it
            return connection
        if process is None or process.poll() is not None:
            process = _start_template(owner)
        time.sleep(_WAIT_S)
    raise TimeoutError("the fork server has not started")


def _address(owner: int) -> str:
    return f"\0holdfast-fork-server-{owner}"


def _start_template(owner: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fork_server", str(owner), _PADDING],
        cwd=ROOT,
        start_new_session=True,
        # A process of several threads cannot be forked; DeepSpeed would search for a GPU.
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "PADDING": _PADDING,
        },
    )


def main(owner: int) -> None:
    """Fork servers until the process that owns the test run has exited."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(_address(owner))
        end = os.pidfd_open(owner)
    except OSError:  # another worker was faster; the test run has ended
        return
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    for name in _IMPORTS:
        importlib.import_module(name)
    while end not in (ready := select.select([listener, end], [], [])[0]) and ready:
        connection, _ = listener.accept()
        with connection:
            _, user, _ = struct.unpack(
                "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            message, files, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 1)
            if user != os.getuid() or not files:
                continue
            server = os.fork()
            if server == 0:
                listener.close()
                connection.close()
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                _serve(files[0], pickle.loads(message))
                os._exit(0)
            os.close(files[0])
            connection.send(b"%d" % server)


# ---- a server process


def _serve(number: int, extra_imports: Iterable[str]) -> None:
    """Serve requests until the test process has exited."""
    for name in extra_imports:
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
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        if request.inside:
            _enter(request.inside)
        os.chdir(request.folder)
        forget_parent()
        getattr(importlib.import_module(request.module), request.function)(*request.arguments)
        status = 0
    except SystemExit as stop:
        status = exit_status(stop)
    except BaseException:  # noqa: BLE001 - reported as Python does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _enter(process: int) -> None:
    """Continue as a new process in the namespaces of another one."""
    flags = sum(
        flag
        for name, flag in _NAMESPACES.items()
        if Path(f"/proc/self/ns/{name}").readlink() != Path(f"/proc/{process}/ns/{name}").readlink()
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.pidfd_open(process), flags):
        raise OSError(ctypes.get_errno(), "setns")
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def show_in_proc(words: Iterable[str], environment: Mapping[str, str]) -> None:
    """Replace the command line and the environment of this process in /proc, if they fit."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    variables = [f"{name}={value}" for name, value in environment.items()]
    for field, texts in ((_ARGUMENTS_FIELD, words), (_ENVIRONMENT_FIELD, variables)):
        begin, end = map(int, fields[field : field + 2])
        content = b"".join(os.fsencode(text) + b"\0" for text in texts)
        if len(content) < end - begin:
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, content, len(content))


def exit_status(stop: SystemExit) -> int:
    """Return the exit status; print a message as Python does."""
    if stop.code is not None and not isinstance(stop.code, int):
        sys.stderr.write(f"{stop.code}\n")
        return 1
    return (stop.code or 0) & 0xFF


def forget_parent() -> None:
    """Reset what a new interpreter would not have inherited."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    tempfile.tempdir = None


def run_program(*command: str) -> None:
    """Run ``-m MODULE …`` or ``SCRIPT …`` as ``__main__``."""
    show_in_proc((sys.executable, *command), os.environ)
    if command[0] == "-m":
        sys.argv = list(command[1:])
        sys.path.insert(0, str(Path.cwd()))
        warnings.filterwarnings("ignore", ".* found in sys.modules", module="runpy")
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
