"""Ranks and processes in the names of logs: the folder layouts of launchers and tools."""

from __future__ import annotations

import re

_PATH_SEPARATORS = re.compile(r"[/!]")
#: torchrun's ``--log-dir``: a folder per attempt, and in it one per rank.
_TORCHRUN_LOG = re.compile(r"attempt_\d+/(?P<rank>\d{1,6})/(?:std(?:out|err)\.log|error\.json)$")
#: Slurm's ``%j_%t``, with or without a name; ``slurm-%A_%a.out`` is the default of job arrays,
#: and a date with a clock time is neither.
_SLURM_LOG = re.compile(
    r"(?!slurm-\d+_|.{0,200}\d{8}[_-]\d{6}\.)(?:.{0,200}[_.-])?\d{3,12}[_.-](?:task)?(?P<rank>\d{1,6})\.(?:out|err|log|txt)$"
)
#: Conventions within one part of a path.
_RANK_IN_PATH = (
    re.compile(
        r"(?:^|(?<!local)(?<!node)(?<!machine)[_.-])(?:global[_.-]?)?rank[_.-]?(?P<rank>\d{1,6})"
        r"(?:[_.-]|$)",
        re.IGNORECASE,
    ),
    re.compile(r"(?:^|[_.-])(?:task|worker|proc)[_-](?P<rank>\d{1,6})\.(?:log|out|err|txt)$"),
    re.compile(r"^workerlog\.(?P<rank>\d{1,6})$"),
)
#: Ray's output of a worker: its id, that of the job, its pid.
_RAY_WORKER_LOG = re.compile(
    r"(?:^|/)worker-[0-9a-f]{6,64}-(?:[0-9a-f]{8}|ffffffff)-(?P<pid>\d{1,8})\.(?:out|err)$"
)


def rank_in_name(name: str) -> int | None:
    """Return the rank in a file's name, or in the innermost folder that has one; None if none."""
    found = _TORCHRUN_LOG.search(name)
    if found is not None:
        return int(found["rank"])
    parts = _PATH_SEPARATORS.split(name)
    for part in reversed(parts):
        for expression in _RANK_IN_PATH:
            if (found := expression.search(part)) is not None:
                return int(found["rank"])
    found = None if _RAY_WORKER_LOG.search(name) else _SLURM_LOG.match(parts[-1])
    return int(found["rank"]) if found is not None else None


def actor_pid_in_name(name: str) -> int | None:
    """Return the pid of the Ray worker that printed the log of this name; None if it is another."""
    found = _RAY_WORKER_LOG.search(name)
    return int(found["pid"]) if found is not None else None
