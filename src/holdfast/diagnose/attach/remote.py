"""Run ``holdfast attach`` on another host over ssh and read its observation of a job."""

from __future__ import annotations

import shlex
import subprocess

import msgspec

from holdfast.core.findings import Unknown
from holdfast.diagnose.attach.jobs import HostJob, JobSearch
from holdfast.diagnose.stacks.job_samples import JobSamples

CONNECT_TIMEOUT_S = 5
REPLY_TIMEOUT_S = 20.0
_MAX_BYTES = 256 << 20


class HostObservation(msgspec.Struct, frozen=True):
    """A job as seen from one host: the part of ``attach --json`` that a joint verdict needs."""

    job: HostJob
    samples: JobSamples


def observe_remote_host(host: str, search: JobSearch) -> HostObservation | Unknown:
    """Return the observation of ``host``; Unknown if it is unreachable or runs no such job.

    Takes at most REPLY_TIMEOUT_S.
    """
    if host.startswith("-"):
        return Unknown(f"host {host!r}: a host name does not begin with a dash")
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    try:
        completed = subprocess.run(
            ["ssh", *options, host, _attach_command(search)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=REPLY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Unknown(f"host {host}: no reply within {REPLY_TIMEOUT_S:.0f} s")
    except OSError as error:
        return Unknown(f"host {host}: cannot start ssh: {error.strerror}")
    return _parse_reply(host, completed)


def _attach_command(search: JobSearch) -> str:
    words = ["holdfast", "attach", "--json"]
    words += [word for pid in search.pids for word in ("--pid", str(pid))]
    words += ["--name", search.name] if search.name else []
    words += ["--port", str(search.port)] if search.port is not None else []
    return shlex.join(words)


def _parse_reply(
    host: str, completed: subprocess.CompletedProcess[bytes]
) -> HostObservation | Unknown:
    """Parse the first JSON line; a login shell may print a greeting before it."""
    lines = completed.stdout[:_MAX_BYTES].splitlines()
    document = next((line for line in lines if line.startswith(b'{"schema"')), None)
    if document is None:
        errors = completed.stderr.decode(errors="replace").strip().splitlines()
        why = errors[-1][:200] if errors else f"no reply (exit status {completed.returncode})"
        return Unknown(f"host {host}: {why}")
    try:
        return msgspec.json.decode(document, type=HostObservation)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unknown(f"host {host}: invalid reply: {error}")
