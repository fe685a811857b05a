"""Run a program whose Python child processes are forked, too, instead of new interpreters.

Each new interpreter needs 1.3 s of CPU time to import torch. Here children are forked from a process
that has torch imported and no threads. The program becomes their parent by adopting them (a
subreaper, prctl(2)), so that it waits for them and signals them as usual. Difference to a new
interpreter: torch and parts of holdfast are imported before the program starts.
"""

import atexit
import ctypes
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

from tests import fork_server as forking
from tests.fork_server import exit_status, forget_parent, fork_server, run_program, show_in_proc

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_MAX_MESSAGE_BYTES = 1 << 20
#: Files of the frames around a program.
_RUNS_PROGRAM = (__file__, forking.__file__)
#: The program of a rank, which starts no Python programs.
_RANK = "holdfast.recorder.bootstrap"


class Forks:
    """A process that forks children of this process, which has one thread."""

    def __init__(self):
        self._connection, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        if os.fork() == 0:
            self._connection.close()
            os.chdir("/")  # it is no process of the job
            show_in_proc([sys.executable, "-m", __name__], {})
            _serve(other_end)
        other_end.close()

    def start(self, content, files):
        """Return the id of a child with the program ``content``; ``files`` are its number -> file."""
        message = pickle.dumps((content, [*files]))
        with self._lock:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._connection, [message], [*files.values()])
                return int(self._connection.recv(64))
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _serve(connection):
    """Fork children until the parent has exited."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        message, files, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 16)
        if not message:
            os._exit(0)
        reader, writer = os.pipe()
        intermediate = os.fork()
        if intermediate == 0:  # its exit makes the new process a child of the parent
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                connection.close()
                os.close(reader)
                os.close(writer)
                while os.getppid() == parent:
                    time.sleep(0.001)
                content, numbers = pickle.loads(message)
                _place(files, numbers)
                _run_program(*content)
            os.write(writer, b"%d" % child)
            os._exit(0)
        os.waitpid(intermediate, 0)
        connection.send(os.read(reader, 64))
        for file in (reader, writer, *files):
            os.close(file)


def _place(files, numbers):
    """Give the received files the numbers that the program expects."""
    spare = [os.dup2(file, 100 + at, inheritable=False) for at, file in enumerate(files)]
    for file in files:
        os.close(file)
    for file, number in zip(spare, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def finish(program, *arguments):
    """Call ``program`` as the main program of this process: output, status, exit handlers."""
    status = 1
    try:
        program(*arguments)
        status = 0
    except SystemExit as stop:
        status = exit_status(stop)
    except BaseException as error:  # noqa: BLE001 - reported as Python does
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _RUNS_PROGRAM:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def unbuffered(number):
    """Return an output as ``python -u`` opens it."""
    return io.TextIOWrapper(open(number, "wb", 0, closefd=False), write_through=True)


# ---- programs and their child processes


class RunningProgram:
    """A program whose Python child processes are forked; its output is written to files.

    Args:
        command: ``-m MODULE …`` or ``SCRIPT …``.
        folder: its working folder.
        variables: additional environment variables.
    """

    def __init__(self, *command, folder, **variables):
        outputs = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed by result()
        self._outputs = outputs
        self.process = fork_server().start(
            run_forking,
            *map(str, command),
            environment=os.environ | variables,
            folder=folder,
            stdout=outputs[0],
            stderr=outputs[1],
        )

    def wait_for_output(self, limit_s=60):
        """Wait for the first output. Raises TimeoutError."""
        until = time.monotonic() + limit_s
        while not os.fstat(self._outputs[0].fileno()).st_size:
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                raise TimeoutError(self._text(1))
            time.sleep(0.02)

    def result(self, limit_s=100):
        """Wait; return exit status and output as ``subprocess.run`` does. Raises TimeoutError."""
        try:
            status = self.process.wait(limit_s)
        finally:
            self.process.kill()
        return subprocess.CompletedProcess([], status, *map(self._text, range(2)))

    def _text(self, number):
        with self._outputs[number] as file:
            file.seek(0)
            return file.read().decode()


def call_forking(function, *arguments, limit_s):
    """Return ``function(*arguments)``, called in a process whose Python child processes are forked."""
    with tempfile.NamedTemporaryFile() as answer:
        process = fork_server().start(_call, answer.name, function, arguments)
        try:
            assert process.wait(limit_s) == 0
        finally:
            process.kill()
        return pickle.load(answer)


def _call(answer, function, arguments):
    _fork_programs()
    Path(answer).write_bytes(pickle.dumps(function(*arguments)))


def run_forking(*command):
    """Run ``-m MODULE …`` or ``SCRIPT …`` in this process, which has one thread."""
    _fork_programs()
    run_program(*command)


def _fork_programs():
    """From now on, ``subprocess`` forks Python programs."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    forks = Forks()

    class ForkedProgram(subprocess.Popen):
        def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, *rest):
            cwd, env, _, _, shell, stdin, _, _, stdout, _, stderr, *_, session, _ = rest
            words, changes, changed_folder = _split_env([] if shell else [*map(str, args)])
            program, quiet = _python_program(words)
            if not program or preexec_fn:
                super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, *rest)
                return
            streams = {0: stdin, 1: stdout, 2: stderr}
            files = {number: number if file == -1 else file for number, file in streams.items()}
            files |= {number: number for number in pass_fds}
            environment = {**(os.environ if env is None else env), **changes}
            folder = str(changed_folder or cwd or Path.cwd())
            self.pid = forks.start((program, quiet, environment, folder, session), files)
            self._child_created = True
            self._close_pipe_fds(*rest[5:11])

    subprocess.Popen = subprocess_handler.Popen = ForkedProgram


def _split_env(words):
    """Return a command without ``env [--chdir=FOLDER] [NAME=VALUE …]``, the variables, the folder."""
    variables, folder = {}, None
    if words[:1] == ["env"]:
        while words and (words[0] == "env" or "=" in words[0]):
            name, _, value = words.pop(0).partition("=")
            if name == "--chdir":
                folder = value
            elif name != "env":
                variables[name] = value
    return words, variables, folder


def _python_program(words):
    """Return the program of a Python command and whether it prints no warnings; nothing if another one."""
    if words[:1] != [sys.executable]:
        return [], False
    quiet = words[1:3] == ["-W", "ignore"]
    program = words[3 if quiet else 1 :]
    known = program[:1] == ["-m"] or program[:1] == ["-u"] or (program[:1] and program[0][0] != "-")
    return (program, quiet) if known else ([], False)


def _run_program(program, quiet, environment, folder, session):
    """Turn this process into the program; never return."""
    if session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.stdin, sys.stderr = os.fdopen(0, closefd=False), unbuffered(2)
    if program[0] == "-u":
        program, sys.stdout = program[1:], unbuffered(1)
    else:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if quiet:
        warnings.simplefilter("ignore")
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    forget_parent()
    finish(run_program if program[:2] == ["-m", _RANK] else run_forking, *program)
