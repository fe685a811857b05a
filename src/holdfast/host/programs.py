"""Runs programs of the host (nvidia-smi, ibstat, dmesg) with limits on time and output size."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence

from holdfast.core.findings import Unknown

LIMIT_S = 10.0
MAX_OUTPUT_BYTES = 4 << 20


class NotInstalled(Unknown, frozen=True):
    """The program is not installed."""


class ProgramTimeout(Unknown, frozen=True):
    """The program did not end in time, and was killed."""


def run_program(
    command: Sequence[str], limit_s: float = LIMIT_S, stdin_data: bytes = b""
) -> bytes | Unknown:
    """Return the output of ``command`` (at most MAX_OUTPUT_BYTES).

    Unknown if it is missing, fails or times out. ``given`` is its standard input.
    """
    program = command[0]
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(stdin_data)
        stdin.seek(0)
        try:
            child = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
        except FileNotFoundError:
            return NotInstalled(f"{program} is not installed")
        except OSError as error:
            return Unknown(f"{program} could not be started: {error.strerror}")
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            return ProgramTimeout(f"{program} did not answer within {limit_s:g} s")
        stdout.seek(0)
        stderr.seek(0)
        if status != 0:
            lines = (stderr.read(4096) or stdout.read(4096)).decode(errors="replace").split("\n")
            return Unknown(
                f"{program} exited with status {status}: {lines[0][:200] or 'no error message'}"
            )
        return stdout.read(MAX_OUTPUT_BYTES)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the program; one blocked in a driver ignores even SIGKILL and is abandoned."""
    child.kill()
    try:
        child.wait(0.5)
    except subprocess.TimeoutExpired:
        child.returncode = -9  # so that nothing waits for it any more, not even at exit
