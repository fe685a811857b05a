"""Run the launcher in a forked process whose ranks are forked too, instead of new interpreters.

Torch starts a rank with ``subprocess.Popen``. Here the launcher adopts forked processes
(tests/forked_programs.py). A rank gets its own session, environment, folder and output, and
executes the bootstrap of ``holdfast run`` with the script. Everything else that the launcher starts
is a new interpreter.
"""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from tests.fork_server import run_program
from tests.forked_programs import Forks, finish, unbuffered


def run_launcher(*command):
    """Run ``-m holdfast run …`` in this process, which has one thread."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    from holdfast.launcher.elastic.command_line import BOOTSTRAP

    forks = Forks(_run_rank)
    start_interpreter = SubprocessHandler._popen

    def popen(self, args, env):
        if BOOTSTRAP not in args:
            return start_interpreter(self, args, env)
        outputs = {1: self._stdout, 2: self._stderr}
        files = {0: 0} | {
            number: out.fileno() if out else number for number, out in outputs.items()
        }
        return _ForkedRank(forks, args, env, files)

    SubprocessHandler._popen = popen
    run_program(*command)


class _ForkedRank(subprocess.Popen):
    """A rank that is a child of the launcher although another process has forked it."""

    def __init__(self, forks, args, env, files):
        self.args, self.returncode = args, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._sigint_wait_secs = 0.25
        mask = os.umask(0)
        os.umask(mask)
        arguments = args[args.index("-m") + 2 :]
        self.pid = forks.start((tuple(arguments), dict(env), str(Path.cwd()), mask), files)


def _run_rank(arguments, environment, folder, mask):
    """Turn this process into a rank; never return."""
    from holdfast.recorder import bootstrap, standby

    os.setsid()
    os.umask(mask)
    os.chdir(folder)
    standby._replace_environment(environment)
    sys.argv, sys.path[0] = ["-m", *arguments], folder
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = unbuffered(1), unbuffered(2)
    random.seed()
    sys.modules["numpy"].random.seed()
    finish(bootstrap.main, arguments)
