"""Observations for items that no other command of holdfast makes.

Each function gets the item's subject and returns a state with the reason; UNKNOWN if it cannot be
observed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.core import settings
from holdfast.core.checkpoint_manifest import step_of_folder
from holdfast.core.text import format_duration, os_error_reason, pluralize
from holdfast.report.check_table import CheckState

State = tuple[CheckState, str]
#: A checkpoint is late after this multiple of the interval between the last two.
LATE_FACTOR = 3.0
_HISTORY_LIMIT_S = 30


def program(name: str) -> State:
    """Return whether a program is on PATH, or beside this Python."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    return (CheckState.OK, found) if found else (CheckState.ERROR, f"{name} is not installed")


def package(name: str) -> State:
    """Return whether a Python package is installed."""
    if find_spec(name) is None:
        return CheckState.ERROR, f"the package {name} is not installed"
    return CheckState.OK, f"{name} is installed"


def alerts(_: str) -> State:
    """Return whether failures are sent to anyone."""
    urls = (settings.read_text("HOLDFAST_ALERTS") or "").split()
    if not urls:
        return CheckState.ERROR, "HOLDFAST_ALERTS is not set: failures are sent to no one"
    return CheckState.OK, f"{pluralize(len(urls), 'receiver')} in HOLDFAST_ALERTS"


def data_shards(pattern: str) -> State:
    """Return whether the files of a folder or pattern can be read, and none is empty."""
    path = Path(pattern)
    base, glob = (path, "*") if path.is_dir() else (path.parent, path.name)
    try:
        files = sorted(each for each in base.glob(glob) if each.is_file())
        sizes = [each.stat().st_size for each in files]
        for each in files:
            with each.open("rb") as content:
                content.read(1)
    except OSError as error:
        return CheckState.ERROR, f"{error.filename}: {os_error_reason(error)}"
    if not files:
        return CheckState.ERROR, f"no file matches {pattern}"
    empty = [each.name for each, size in zip(files, sizes, strict=True) if not size]
    if empty:
        return CheckState.ERROR, f"{pluralize(len(empty), 'empty file')}, e.g. {empty[0]}"
    total = f"{sum(sizes) / 2**30:.2f} GiB"
    return CheckState.OK, f"{pluralize(len(files), 'file')}, {total}, none empty"


def checkpoint_age(folder: str) -> State:
    """Return whether the newest checkpoint is as recent as the interval between saves implies."""
    times = [_modified(each) for each in _checkpoints(Path(folder))]
    if not times:
        return CheckState.ERROR, f"no checkpoint in {folder}"
    age_s = time.time() - times[-1]
    newest = f"the newest checkpoint is {format_duration(age_s)} old"
    if len(times) < 2:
        return CheckState.UNKNOWN, f"{newest}; the interval between saves is unknown"
    interval_s = max(later - earlier for earlier, later in pairwise(times[-3:]))
    late = age_s > LATE_FACTOR * interval_s
    state = CheckState.ERROR if late else CheckState.OK
    return state, f"{newest}; the last saves were {format_duration(interval_s)} apart"


def restart_rehearsed(run: str) -> State:
    """Return whether a run was restarted once and made progress afterwards."""
    records = _history(run)
    if isinstance(records, str):
        return CheckState.UNKNOWN, records
    failed = next((at for at, each in enumerate(records) if each["event"] == "failed"), None)
    if failed is None:
        return (
            CheckState.ERROR,
            "the workers of this run never failed: its restart is not rehearsed",
        )
    later = records[failed + 1 :]
    if not any(each["event"] == "started" for each in later):
        return CheckState.ERROR, "the workers failed and were not started again"
    status = next(
        (each.get("status") for each in reversed(later) if each["event"] == "ended"), None
    )
    if status != 0:
        return (
            CheckState.UNKNOWN,
            "the workers were started again; the run did not end with status 0",
        )
    return CheckState.OK, "the run was restarted after a failure, and ended with status 0"


def no_failures(run: str) -> State:
    """Return whether the run's history has no failure."""
    records = _history(run)
    if isinstance(records, str):
        return CheckState.UNKNOWN, records
    failures = sum(each["event"] == "failed" for each in records)
    if failures:
        return CheckState.ERROR, f"{pluralize(failures, 'failure')} so far: see `holdfast history`"
    return CheckState.OK, "no failure so far"


#: Name in an item -> function.
FACTS: Mapping[str, Callable[[str], State]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        *(program, package, alerts, data_shards),
        *(checkpoint_age, restart_rehearsed, no_failures),
    )
}


def newest_checkpoint(folder: str) -> str | None:
    """Return the newest checkpoint in a folder of checkpoints; None if there is none."""
    return next((str(each) for each in reversed(_checkpoints(Path(folder)))), None)


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of ``holdfast.Checkpoint`` in the folder, oldest first."""
    try:
        found = [each for each in folder.iterdir() if step_of_folder(each) is not None]
    except OSError:
        return []
    return sorted(found, key=lambda each: step_of_folder(each) or 0)


def _modified(folder: Path) -> float:
    return folder.stat().st_mtime


def _history(run: str) -> list[dict[str, Any]] | str:
    """Return the records of a run, or why they cannot be read."""
    words = [sys.executable, "-m", "holdfast", "history", run, "--json"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_HISTORY_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{run} could not be read within {_HISTORY_LIMIT_S} s"
    if done.returncode:
        return done.stderr.strip().removeprefix("holdfast: ")
    records: list[dict[str, Any]] = json.loads(done.stdout)["records"]
    return records
