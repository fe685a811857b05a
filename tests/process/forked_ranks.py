"""Run the launcher in a forked process whose ranks are forked too, instead of new interpreters.

Torch starts a rank with ``subprocess.Popen``, and each interpreter needs 2 s of CPU time to import
it. Here the ranks are forked from a process that has torch imported and no threads. The launcher
becomes their parent by adopting them (a subreaper, prctl(2)), so that it waits for them and signals
them as usual. A rank gets its own session, environment, folder and output, and executes the
bootstrap of ``holdfast run`` with the script. Differences to a new interpreter: its command line in
/proc, and torch is imported before the script starts.
"""

import atexit
import ctypes
import io
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.fork_server import run_program

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_MAX_MESSAGE_BYTES = 1 << 20


def run_launcher(*command):
    """Run ``-m holdfast run …`` in this process, which has one thread."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    from holdfast.launcher.elastic.command_line import BOOTSTRAP

    connection, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        connection.close()
        _serve(other_end)
    other_end.close()
    start_interpreter = SubprocessHandler._popen

    def popen(self, args, env):
        if BOOTSTRAP not in args:
            return start_interpreter(self, args, env)
        outputs = [out.fileno() if out else number for number, out in _outputs(self)]
        return _ForkedRank(connection, args, env, outputs)

    SubprocessHandler._popen = popen
    run_program(*command)


def _outputs(handler):
    return (1, handler._stdout), (2, handler._stderr)


class _ForkedRank(subprocess.Popen):
    """A rank that is a child of the launcher although another process has forked it."""

    def __init__(self, connection, args, env, outputs):
        self.args, self.returncode = args, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._sigint_wait_secs = 0.25
        mask = os.umask(0)
        os.umask(mask)
        arguments = args[args.index("-m") + 2 :]
        message = pickle.dumps((tuple(arguments), dict(env), str(Path.cwd()), mask))
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(connection, [message], [0, *outputs])
            self.pid = int(connection.recv(64))
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _serve(connection):
    """Fork ranks until the launcher has exited."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        message, files, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        reader, writer = os.pipe()
        intermediate = os.fork()
        if intermediate == 0:  # its exit makes the rank a child of the launcher
            parent = os.getpid()
            rank = os.fork()
            if rank == 0:
                connection.close()
                os.close(reader)
                os.close(writer)
                while os.getppid() == parent:  # the rank dies with its parent: the launcher
                    time.sleep(0.001)
                _run_rank(*pickle.loads(message), files)
            os.write(writer, b"%d" % rank)
            os._exit(0)
        os.waitpid(intermediate, 0)
        connection.send(os.read(reader, 64))
        for file in (reader, writer, *files):
            os.close(file)


def _run_rank(arguments, environment, folder, mask, files):
    """Turn this process into a rank; never return."""
    from holdfast.recorder import bootstrap, standby

    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.umask(mask)
    os.chdir(folder)
    standby._replace_environment(environment)
    sys.argv, sys.path[0] = ["-m", *arguments], folder
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    random.seed()
    sys.modules["numpy"].random.seed()
    status = 1
    try:
        bootstrap.main(arguments)
        status = 0
    except SystemExit as stop:
        if isinstance(stop.code, int):
            status = stop.code & 0xFF
        elif stop.code is None:
            status = 0
        else:
            sys.stderr.write(f"{stop.code}\n")
    except BaseException as error:  # noqa: BLE001 - reported as Python does
        sys.excepthook(type(error), error, error.__traceback__.tb_next)
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(status)


def _unbuffered(number):
    """Return an output as ``python -u`` opens it."""
    return io.TextIOWrapper(open(number, "wb", 0, closefd=False), write_through=True)
