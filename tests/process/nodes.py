"""Nodes for tests: shells in separate PID namespaces.

They share the network and read commands line by line. When a node ends, the kernel kills all its
processes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from functools import cache
from pathlib import Path

import pytest

from tests.fork_server import fork_server
from tests.forked_programs import run_forking

AS_NON_ROOT = ("--user", "--map-current-user") if os.geteuid() else ()
UNSHARE = ("unshare", *AS_NON_ROOT, "--pid", "--fork", "--mount-proc", "--kill-child")
LIMIT_S = 60


@cache
def why_not() -> str:
    """Return why nodes cannot be created here; '' if they can."""
    try:
        done = subprocess.run(
            [*UNSHARE, "true"], capture_output=True, text=True, timeout=20, check=False
        )
    except OSError as error:
        return f"unshare cannot be started: {error.strerror}"
    return done.stderr.strip()


class Node:
    """One node with its own ``folder``."""

    def __init__(self, folder, **variables):
        if why_not():
            pytest.skip(f"no PID namespaces here: {why_not()}")
        self.folder, self._programs, self._variables = folder, 0, variables
        folder.mkdir()
        self._shell = subprocess.Popen(
            [*UNSHARE, "sh"], stdin=subprocess.PIPE, cwd=folder, text=True
        )
        for name, text in variables.items():
            self._run_line(f"export {name}={shlex.quote(text)}")
        self._run_line("touch ready")
        wait((folder / "ready").exists, lambda: "the node has not started")
        children = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text()
        self.pid = int(children)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._shell.kill()  # --kill-child ends the first process of the namespace, and the kernel kills the others
        self._shell.stdin.close()
        self._shell.wait(20)

    def _run_line(self, line):
        self._shell.stdin.write(line + "\n")
        self._shell.stdin.flush()

    def start(self, *words, called=""):
        """Start a program in the background; ``called`` is the name of its parent process in ps.

        Its output goes to files.
        """
        at = self._new_number()
        line = shlex.join(map(str, words))
        if called:  # a shell with that name runs the program as its child
            renamed = shlex.join(("exec", "-a", called, "bash", "-c", line + "; exit $?"))
            line = shlex.join(("bash", "-c", renamed))
        self._run_line(
            f"{{ {line} >{at}.out 2>{at}.err </dev/null; echo $? >{at}.status; mv {at}.status {at}.done; }} &"
        )
        return Started(self.folder, at)

    def fork(self, *words):
        """Start ``-m MODULE …`` or ``SCRIPT …``, forked as its Python child processes are."""
        at = self._new_number()
        with (
            (self.folder / f"{at}.out").open("wb") as out,
            (self.folder / f"{at}.err").open("wb") as err,
        ):
            process = fork_server().start(
                run_forking,
                *map(str, words),
                environment=os.environ | self._variables,
                folder=self.folder,
                stdout=out,
                stderr=err,
                inside=self.pid,
            )
        return Started(self.folder, at, process)

    def _new_number(self):
        self._programs += 1
        for kind in ("out", "err"):
            (self.folder / f"{self._programs}.{kind}").touch()
        return self._programs


class Started:
    """A program on a node."""

    def __init__(self, folder, at, process=None):
        self._folder, self._at, self._process = folder, at, process

    def output(self):
        return (self._folder / f"{self._at}.out").read_text(errors="replace")

    def errors(self):
        return (self._folder / f"{self._at}.err").read_text(errors="replace")

    def status(self):
        """Wait until the program exits; return the exit status."""
        if self._process is not None:
            return self._process.wait(LIMIT_S)
        done = self._folder / f"{self._at}.done"
        wait(done.exists, self.errors)
        return int(done.read_text())


def wait(condition, failure_text):
    """Wait until ``condition()`` is true; fail with ``failure_text()`` after LIMIT_S."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, failure_text()
        time.sleep(0.1)
