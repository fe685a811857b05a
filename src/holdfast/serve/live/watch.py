"""Follows the runs below a folder; a file is read again only if it changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.core.ledger import FILE as LEDGER
from holdfast.core.live_state import SERIES, STATES, SeriesPoint
from holdfast.serve.live import reader, runs
from holdfast.serve.live.reader import LiveReading
from holdfast.serve.live.reports import PATTERNS, CommandReport, read_reports
from holdfast.serve.live.runs import RunHead, RunPast

#: Entries that are kept: state, series, past and head of some runs.
MAX_CACHED = 64
#: How long a listing of the folder is reused.
LISTING_S = 2.0

_Value = TypeVar("_Value")


class RunWatch:
    """The runs in ``base``, a folder of runs or one run. Threads may share it.

    ``reports``: a further folder with the output of checks.

    Raises:
        MissingFile: the folder cannot be read.
    """

    def __init__(self, base: Path, reports: Path | None = None) -> None:
        self.base, self._reports = base, reports
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, Path], tuple[Hashable, Any]] = {}
        self._listed_at = float("-inf")
        self._folders: tuple[Path, ...] = ()
        self.folders()

    def folders(self) -> tuple[Path, ...]:
        """Return the run folders, the newest first."""
        if time.monotonic() - self._listed_at > LISTING_S:
            self._folders = runs.find_runs(self.base)
            self._listed_at = time.monotonic()
        return self._folders

    def find(self, name: str) -> Path | None:
        """Return the folder of the run of that name."""
        return next((folder for folder in self.folders() if folder.name == name), None)

    def heads(self) -> tuple[RunHead, ...]:
        """Return one line per run, the newest first."""
        return tuple(
            self._read("head", folder, (LEDGER, STATES), runs.read_head)
            for folder in self.folders()
        )

    def live(self, folder: Path) -> LiveReading:
        """Return the live state; its age is that of now."""
        return reader.select_state(
            self._read("live", folder, (STATES,), reader.read_files), time.time()
        )

    def live_json(self, folder: Path) -> bytes:
        """Return the newest live state as JSON, which is encoded once for all pages."""

        def encode(_: Path) -> bytes:
            states = self._read("live", folder, (STATES,), reader.read_files).states
            return msgspec.json.encode(states[-1] if states else None)

        return self._read("json", folder, (STATES,), encode)

    def series(self, folder: Path) -> tuple[SeriesPoint, ...]:
        """Return the points of the heat map."""
        return self._read("series", folder, (SERIES,), reader.read_series)

    def past(self, folder: Path) -> RunPast:
        """Return the timeline, incidents and findings."""
        return self._read("past", folder, (LEDGER, "incidents", "incidents/*"), runs.read_past)

    def reports(self, folder: Path) -> tuple[tuple[CommandReport, ...], tuple[str, ...]]:
        """Return the results of commands beside the run, and why others could not be read."""
        folders = self._report_folders(folder)
        return self._read("reports", folder, PATTERNS, lambda _: read_reports(folders), folders)

    def _report_folders(self, folder: Path) -> tuple[Path, ...]:
        return (folder, folder.parent, *((self._reports,) if self._reports else ()))

    def version(self, folder: Path) -> tuple[Hashable, Hashable, Hashable]:
        """Return what changes with the live state, the series and the past of a run."""
        return (
            _version((folder,), (STATES,)),
            _version((folder,), (SERIES,)),
            (
                _version((folder,), (LEDGER, "incidents", "incidents/*")),
                _version(self._report_folders(folder), PATTERNS),
            ),
        )

    def _read(
        self,
        kind: str,
        folder: Path,
        patterns: tuple[str, ...],
        read: Callable[[Path], _Value],
        folders: tuple[Path, ...] = (),
    ) -> _Value:
        version = _version(folders or (folder,), patterns)
        key = (kind, folder)
        with self._lock:
            known = self._cache.pop(key, None)
        value = known[1] if known is not None and known[0] == version else read(folder)
        with self._lock:
            self._cache[key] = (version, value)
            while len(self._cache) > MAX_CACHED:
                self._cache.pop(next(iter(self._cache)))
        return value


def _version(folders: Iterable[Path], patterns: tuple[str, ...]) -> Hashable:
    """Return names, sizes and times of the files that match."""
    found = []
    for folder, pattern in product(folders, patterns):
        try:
            for path in sorted(folder.glob(pattern)):
                state = path.stat()
                found.append((path, state.st_mtime_ns, state.st_size))
        except OSError:
            continue  # deleted meanwhile
    return tuple(found)
