"""Lints again whenever a file changes: times and sizes of files are asked for, which works on every file system."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast.actions.lint.options import Options, configured
from holdfast.errors import UsageError
from holdfast.facts.code import reading

#: How long to wait between two looks; where looking takes long, ten times as long as it takes.
EVERY_S = 0.5
_SLOWER = 10
#: An editor that empties a file before it writes it is done by then, so that half a file is not judged.
SETTLED_S = 0.05
State = dict[str, tuple[int, int, int] | None]


def rounds(paths: Sequence[Path], sleep: Callable[[float], None] = time.sleep) -> Iterator[int]:
    """The number of files, at once and after each change of one of them, of their number, or of the configuration."""
    last: State | None = None
    while True:
        began = time.monotonic()
        now = state(paths)
        if now != last:
            while last is not None and now != last:
                sleep(SETTLED_S)
                last, now = now, state(paths)
            last = now
            yield len(now)
        else:
            sleep(max(EVERY_S, _SLOWER * (time.monotonic() - began)))


def state(paths: Sequence[Path]) -> State:
    """When each file was last written, how large it is and which one; None for one that is gone by now."""
    try:
        options = configured(paths)
    except UsageError:  # which who lints says
        options = Options()
    files = reading.listed(paths, options.left_out)
    tables = [folder / "pyproject.toml" for path in paths for folder in (path.absolute(), *path.absolute().parents)]
    return {str(path): seen for path in files for seen in [_seen(path)]} | {
        str(path): seen for path in dict.fromkeys(tables) if (seen := _seen(path)) is not None
    }


def _seen(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
