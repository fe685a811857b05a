"""What ``holdfast attach`` on another host sees of a job, asked for over ssh."""

from __future__ import annotations

import shlex
import subprocess

import msgspec

from holdfast.facts.job_samples import Samples
from holdfast.facts.jobs import Job, Search
from holdfast.findings import Unknown

CONNECT_LIMIT_S = 5
ANSWER_LIMIT_S = 20.0
_MOST_BYTES = 256 << 20


class Seen(msgspec.Struct, frozen=True):
    """The part of the answer that is needed to judge over several hosts."""

    job: Job
    samples: Samples


def ask(host: str, search: Search) -> Seen | Unknown:
    """What is seen on ``host``, within bounded time; Unknown where it cannot be reached or sees no such job."""
    if host.startswith("-"):
        return Unknown(f"host {host!r}: a host's name does not begin with a dash")
    command = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_LIMIT_S}", host, _words(search)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Unknown(f"host {host} gave no answer within {ANSWER_LIMIT_S:.0f} s")
    except OSError as error:
        return Unknown(f"host {host}: ssh could not be started: {error.strerror}")
    return _read(host, done)


def _words(search: Search) -> str:
    words = ["holdfast", "attach", "--json"]
    words += [word for pid in search.pids for word in ("--pid", str(pid))]
    words += ["--name", search.name] if search.name else []
    words += ["--port", str(search.port)] if search.port is not None else []
    return shlex.join(words)


def _read(host: str, done: subprocess.CompletedProcess[bytes]) -> Seen | Unknown:
    """The answer; a log-in that prints a greeting before it is forgiven."""
    line = next((line for line in done.stdout[:_MOST_BYTES].splitlines() if line.startswith(b'{"schema"')), None)
    if line is None:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return Unknown(f"host {host}: {said[-1][:200] if said else f'no answer (status {done.returncode})'}")
    try:
        return msgspec.json.decode(line, type=Seen)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unknown(f"host {host}: its answer cannot be read: {error}")
