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

import pytest

AS_OTHERS = ("--user", "--map-current-user") if os.geteuid() else ()
UNSHARE = ("unshare", *AS_OTHERS, "--pid", "--fork", "--mount-proc", "--kill-child")
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
        self.folder, self._made = folder, 0
        folder.mkdir()
        self._shell = subprocess.Popen(
            [*UNSHARE, "sh"], stdin=subprocess.PIPE, cwd=folder, text=True
        )
        for name, text in variables.items():
            self._tell(f"export {name}={shlex.quote(text)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._shell.kill()  # --kill-child ends the namespace's first process, and the kernel the others
        self._shell.stdin.close()
        self._shell.wait(20)

    def _tell(self, line):
        self._shell.stdin.write(line + "\n")
        self._shell.stdin.flush()

    def start(self, *words, called=""):
        """Start a program in the background, with output to files and the name ``called`` in ps."""
        self._made += 1
        line = shlex.join(map(str, words))
        if called:  # a shell under that name, and the program below it
            renamed = shlex.join(("exec", "-a", called, "bash", "-c", line + "; exit $?"))
            line = shlex.join(("bash", "-c", renamed))
        at = self._made
        for kind in ("out", "err"):
            (self.folder / f"{at}.{kind}").touch()
        self._tell(
            f"{{ {line} >{at}.out 2>{at}.err </dev/null; echo $? >{at}.status; mv {at}.status {at}.done; }} &"
        )
        return Started(self.folder, at)


class Started:
    """A program on a node."""

    def __init__(self, folder, at):
        self._folder, self._at = folder, at

    def output(self):
        return (self._folder / f"{self._at}.out").read_text(errors="replace")

    def errors(self):
        return (self._folder / f"{self._at}.err").read_text(errors="replace")

    def status(self):
        """Wait for the end; return the exit status."""
        done = self._folder / f"{self._at}.done"
        wait(done.exists, self.errors)
        return int(done.read_text())


def wait(holds, otherwise):
    """Wait until ``holds`` is true."""
    until = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until, otherwise()
        time.sleep(0.1)
