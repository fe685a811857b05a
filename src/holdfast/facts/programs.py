"""What programs of the machine say (nvidia-smi, ibstat, dmesg): bounded in time and size, absent ones said to be so."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence

from holdfast.findings import Unknown

LIMIT_S = 10.0
MOST_BYTES = 4 << 20


class NotInstalled(Unknown, frozen=True):
    """There is no such program here."""


class TooLate(Unknown, frozen=True):
    """It did not answer in time, and was ended."""


def said(command: Sequence[str], limit_s: float = LIMIT_S, given: bytes = b"") -> bytes | Unknown:
    """What ``command`` prints, the first MOST_BYTES of it; Unknown where it is missing, fails or takes too long.

    ``given`` is what it can read on its standard input.
    """
    program = command[0]
    with (
        tempfile.TemporaryFile() as question,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as complaints,
    ):
        question.write(given)
        question.seek(0)
        try:
            child = subprocess.Popen(command, stdin=question, stdout=output, stderr=complaints, start_new_session=True)
        except FileNotFoundError:
            return NotInstalled(f"{program} is not installed here")
        except OSError as error:
            return Unknown(f"{program} could not be started: {error.strerror}")
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(child)
            return TooLate(f"{program} did not answer within {limit_s:g} s")
        output.seek(0)
        complaints.seek(0)
        if status != 0:
            lines = (complaints.read(4096) or output.read(4096)).decode(errors="replace").split("\n")
            return Unknown(f"{program} ended with status {status}: {lines[0][:200] or 'it gave no reason'}")
        return output.read(MOST_BYTES)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill it; a program that waits in the driver hears nothing, and is left behind."""
    child.kill()
    try:
        child.wait(0.5)
    except subprocess.TimeoutExpired:
        child.returncode = -9  # it is not waited for any more, also not at our end
