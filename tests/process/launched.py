"""Start `holdfast run` as a user does; inspect its output, processes and files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.fork_server import fork_server, run_program
from tests.forked_programs import run_forking

LIMIT_S = 90


class Launched:
    """One `holdfast run` in ``folder``; its output is written to a file.

    Launcher, watcher and ranks are forked from a server that has imported torch
    (tests/forked_programs.py). With ``new_ranks``, ranks and watcher are new interpreters, as they
    are for a user; with ``new_interpreter``, the launcher is one, too. With a ``terminal`` (tests/process/terminal.py), input and output are that.
    """

    def __init__(
        self,
        folder,
        *arguments,
        new_interpreter=False,
        new_ranks=False,
        terminal=None,
        **variables,
    ):
        environment = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("HOLDFAST_", "PET_"))
        }
        environment |= {
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
            "HOLDFAST_HISTORY_STORE": "off",  # half a second per job
            **variables,
        }
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self._file = self.folder / "output.txt"
        command = ["-m", "holdfast", "run", "--run-dir", "runs", *map(str, arguments)]
        program = run_program if new_ranks else run_forking
        with self._file.open("wb") as file:
            if terminal is not None:
                del environment["COLUMNS"]
                streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.file)
                self.process = fork_server().start(
                    program, *command, environment=environment, folder=folder, **streams
                )
            elif new_interpreter:
                self.process = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=folder,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            else:
                self.process = fork_server().start(
                    program,
                    *command,
                    environment=environment,
                    folder=folder,
                    stdout=file,
                    stderr=file,
                )

    @property
    def output(self):
        return self._file.read_text(errors="replace")

    @property
    def run(self):
        """Return the run folder."""
        (folder,) = (
            path for path in (self.folder / "runs").iterdir() if (path / "run.json").exists()
        )
        return folder

    def trace_files(self):
        """Return this run's files in shared memory."""
        return list(Path("/dev/shm").glob(f"holdfast-{self.run.name}*"))

    def wait_for(self, text, times=1):
        until = time.monotonic() + LIMIT_S
        while len(re.findall(text, self.output)) < times:
            assert time.monotonic() < until, f"no {text!r} in:\n{self.output}"
            assert self.process.poll() is None or len(re.findall(text, self.output)) >= times, (
                self.output
            )
            time.sleep(0.05)
        return self

    def family(self):
        """Return all descendants of this process."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def send(self, number):
        self.process.send_signal(number)
        return self

    def end(self, limit_s=LIMIT_S):
        """Wait until the process exits; return the exit status."""
        try:
            return self.process.wait(limit_s)
        except (subprocess.TimeoutExpired, TimeoutError):
            self.kill()
            raise AssertionError(f"did not end:\n{self.output}") from None

    def kill(self):
        if self.process.poll() is None:
            family = self.family()
            self.process.send_signal(signal.SIGKILL)
            for each in family:
                each.kill()

    def json(self, name):
        return json.loads((self.folder / name).read_text())


def wait_gone(processes, limit_s=5.0):
    """Return those of ``processes`` that still run after at most ``limit_s`` seconds."""
    _, left = psutil.wait_procs(processes, timeout=limit_s)
    return [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
