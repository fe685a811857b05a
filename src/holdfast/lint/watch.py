"""Lint again whenever a file changes, by polling, which works on every file system."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast.core.errors import UsageError
from holdfast.lint.options import LintOptions, load_configuration
from holdfast.lint.sources import files as sources_files

#: Interval between polls; if polling is slow, ten times its duration.
POLL_INTERVAL_S = 0.5
_SCAN_FACTOR = 10
#: Delay that lets an editor finish writing a file that it truncated first.
SETTLE_S = 0.05
FileStates = dict[str, tuple[int, int, int] | None]


def watch_rounds(
    paths: Sequence[Path], sleep: Callable[[float], None] = time.sleep
) -> Iterator[int]:
    """Yield the number of files, at once and after each change of a file or the configuration."""
    last: FileStates | None = None
    while True:
        began = time.monotonic()
        now = read_file_states(paths)
        if now != last:
            while last is not None and now != last:
                sleep(SETTLE_S)
                last, now = now, read_file_states(paths)
            last = now
            yield len(now)
        else:
            sleep(max(POLL_INTERVAL_S, _SCAN_FACTOR * (time.monotonic() - began)))


def read_file_states(paths: Sequence[Path]) -> FileStates:
    """Return each file's modification time, size and inode; None if it no longer exists."""
    try:
        options = load_configuration(paths)
    except UsageError:  # linting reports the error
        options = LintOptions()
    files = sources_files.list_files(paths, options.is_excluded)
    tables = [
        folder / "pyproject.toml"
        for path in paths
        for folder in (path.absolute(), *path.absolute().parents)
    ]
    return {str(path): file_state for path in files for file_state in [_file_state(path)]} | {
        str(path): file_state
        for path in dict.fromkeys(tables)
        if (file_state := _file_state(path)) is not None
    }


def _file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
