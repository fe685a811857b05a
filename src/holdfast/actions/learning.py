"""Learns the time limits of a job's sections while it runs, and keeps them for its next run.

``sections.json`` lies beside the history of collectives, in the folder of all runs. It is advice: where it cannot be
read or written, the defaults hold.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.errors import MissingFile
from holdfast.facts.node import Summary
from holdfast.report.files import write_whole
from holdfast.rules import sections
from holdfast.rules.sections import Silence
from holdfast.rules.stall import Limits

FILE = "sections.json"
SCHEMA = "holdfast/sections/1"
MOST_BYTES = 1 << 20
#: Jobs that a file remembers; who has not run for longest is forgotten first.
MOST_JOBS = 256
#: Shorter silences tell nothing: a look comes twice a second.
LEAST_S = 1.0


class _Job(msgspec.Struct, frozen=True):
    at: float = 0.0
    silences: Annotated[dict[str, Silence], msgspec.Meta(max_length=16)] = {}


class _Jobs(msgspec.Struct, frozen=True):
    schema: str = SCHEMA
    jobs: dict[str, _Job] = {}


class Learner:
    """Follows one job. ``limits`` are the defaults or what the user set; those named in ``fixed`` are the user's."""

    def __init__(self, limits: Limits, fixed: Collection[str] = ()) -> None:
        self._given = limits
        self._fixed = tuple(fixed)
        self._path: Path | None = None
        self._job = ""
        self._silences: dict[str, Silence] = {}
        self._since = 0.0
        self._silent_s = 0.0
        self._section: str | None = None
        self._new = False
        self.limits = limits

    def begin(self, path: Path, job: str) -> None:
        """The workers of ``job`` were started; what was silent until now did not end well."""
        self._since, self._silent_s, self._section = 0.0, 0.0, None
        if self._path is None:
            self._path, self._job = path, job
            self._silences = dict(_read(path).jobs.get(job, _Job()).silences)
            self.limits = sections.learned(self._given, self._silences, self._fixed)

    def see(self, table: Summary) -> None:
        """One look at the whole job."""
        if table.silent_since > self._since:
            if self._since and self._section is not None and self._silent_s >= LEAST_S:
                self._learn(self._section, self._silent_s)
            self._since, self._section = table.silent_since, None
        self._silent_s = table.time - table.silent_since
        self._section = sections.section(table.ranks) or self._section

    def keep(self) -> None:
        """Write down what was learned, beside what other jobs have learned meanwhile."""
        if not self._new or self._path is None:
            return
        jobs = {**_read(self._path).jobs, self._job: _Job(time.time(), self._silences)}
        newest = dict(sorted(jobs.items(), key=lambda each: each[1].at)[-MOST_JOBS:])
        with suppress(MissingFile, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.format(msgspec.json.encode(_Jobs(jobs=newest))))
            self._new = False

    def _learn(self, section: str, seconds: float) -> None:
        before = self._silences.get(section, Silence())
        self._silences[section] = before.and_one(round(seconds, 1))
        self._new = True
        self.limits = sections.learned(self._given, self._silences, self._fixed)


def _read(path: Path) -> _Jobs:
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError), path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
        found = msgspec.json.decode(data, type=_Jobs) if len(data) <= MOST_BYTES else _Jobs()
        return found if found.schema == SCHEMA else _Jobs()
    return _Jobs()
