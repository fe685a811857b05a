"""Learns the time limits of a job's sections while it runs, and stores them for its next run.

``sections/limits.json`` is stored beside the history of collectives, in the folder of all runs. If
it cannot be read or written, the defaults apply.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import MissingFile
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import roots, section_limits
from holdfast.watcher.rules.section_limits import SectionSilence
from holdfast.watcher.rules.stall import StallLimits

SCHEMA = "holdfast/sections/1"
MAX_BYTES = 1 << 20
#: Jobs in the file; the least recently run is removed first.
MAX_JOBS = 256
#: Shorter silences are not significant: observations are 0.5 s apart.
MIN_SILENCE_S = 1.0


class _JobLimits(msgspec.Struct, frozen=True):
    at: float = 0.0
    silences: Annotated[dict[str, SectionSilence], msgspec.Meta(max_length=16)] = {}


class _LimitsFile(msgspec.Struct, frozen=True):
    schema: str = SCHEMA
    jobs: dict[str, _JobLimits] = {}


class LimitLearner:
    """Follows one job. ``limits`` are the defaults or the user's; ``fixed`` names the user's."""

    def __init__(self, limits: StallLimits, fixed: Collection[str] = ()) -> None:
        self._configured = limits
        self._fixed = tuple(fixed)
        self._path: Path | None = None
        self._job = ""
        self._silences: dict[str, SectionSilence] = {}
        self._since = 0.0
        self._silent_s = 0.0
        self._section: str | None = None
        self._has_changed = False
        self.limits = limits

    def start(self, path: Path, job: str) -> None:
        """Begin a generation of ``job``; a silence before it did not end in progress."""
        self._since, self._silent_s, self._section = 0.0, 0.0, None
        if self._path is None:
            self._path, self._job = path, job
            self._silences = dict(_read(path).jobs.get(job, _JobLimits()).silences)
            self.limits = section_limits.learned_limits(
                self._configured, self._silences, self._fixed
            )

    def observe(self, table: JobSummary) -> None:
        """Process one observation of the whole job; learn from a silence that ended in progress."""
        if table.silent_since > self._since:
            failed = any(roots.died(state) for state in table.ranks)
            if (
                self._since
                and self._section is not None
                and self._silent_s >= MIN_SILENCE_S
                and not failed
            ):
                self._learn(self._section, self._silent_s)
            self._since, self._section = table.silent_since, None
        self._silent_s = table.time - table.silent_since
        self._section = section_limits.section(table.ranks) or self._section

    def save(self) -> None:
        """Write what was learned, and keep what other jobs have written meanwhile."""
        if not self._has_changed or self._path is None:
            return
        jobs = {**_read(self._path).jobs, self._job: _JobLimits(time.time(), self._silences)}
        newest = dict(sorted(jobs.items(), key=lambda item: item[1].at)[-MAX_JOBS:])
        content = msgspec.json.format(msgspec.json.encode(_LimitsFile(jobs=newest)))
        with suppress(MissingFile, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, content)
            self._has_changed = False

    def _learn(self, section: str, seconds: float) -> None:
        before = self._silences.get(section, SectionSilence())
        self._silences[section] = before.add(round(seconds, 1))
        self._has_changed = True
        self.limits = section_limits.learned_limits(self._configured, self._silences, self._fixed)


def _read(path: Path) -> _LimitsFile:
    with (
        suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError),
        path.open("rb") as file,
    ):
        data = file.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            stored = msgspec.json.decode(data, type=_LimitsFile)
            if stored.schema == SCHEMA:
                return stored
    return _LimitsFile()
