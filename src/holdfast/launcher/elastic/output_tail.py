"""Print the workers' output in whole lines.

torch's ``tail_logfile`` (2.13.0) prints whatever the file contains: half a line, then the prefix
again and the rest, or a line of another rank in between. Lines are written in parts by
``print(..., end="")``, by C++ streams, and across page boundaries of the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, TextIO

from torch.distributed.elastic.multiprocessing import tail_log

#: Wait for the rest of a line; then its start is printed, because it may be a rank's last output.
PARTIAL_LINE_S = 2.0
#: Longer lines are printed in parts.
_MAX_LINE = 64 * 1024
_FUNCTION = "tail_logfile"
#: Set at the end of the launch: if a signal ended it, torch may leave its threads unfinished, and
#: this process would wait for them without a limit.
_launch_ended = Event()


@contextmanager
def whole_lines(*, prefixed: bool = True) -> Iterator[None]:
    """Make torch's ``TailLog`` print whole lines inside the with-block, ``prefixed`` or not."""
    original = getattr(tail_log, _FUNCTION, None)
    if original is None:
        yield
        return

    def tail(header: str, *rest: Any, **named: Any) -> None:
        tail_logfile(header if prefixed else "", *rest, **named)

    setattr(tail_log, _FUNCTION, tail)
    _launch_ended.clear()
    try:
        yield
    finally:
        _launch_ended.set()
        setattr(tail_log, _FUNCTION, original)


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Write the lines of ``file`` to ``dst``, after ``header``, until ``finished`` is set.

    Polls every ``interval_sec`` seconds. An incomplete line is printed with a line break after
    PARTIAL_LINE_S; its rest becomes a separate line. Lines that ``log_line_filter`` rejects are
    skipped.

    Raises:
        OSError: the file cannot be read, or ``dst`` cannot be written.
    """
    while not Path(file).exists():
        if finished.wait(interval_sec) or _launch_ended.is_set():
            return
    line, since = "", time.monotonic()
    with Path(file).open(errors="replace") as lines:
        while True:
            # Before reading: everything written by then is read.
            is_last = finished.is_set() or _launch_ended.is_set()
            piece = lines.readline(_MAX_LINE)
            line += piece
            complete = line.endswith("\n") or len(line) >= _MAX_LINE
            overdue = is_last or time.monotonic() - since > PARTIAL_LINE_S
            if line and (complete or (not piece and overdue)):
                line = line if line.endswith("\n") else line + "\n"
                if log_line_filter is None or log_line_filter(line):
                    dst.write(header + line)
                line = ""
            if not line:
                since = time.monotonic()
            if not piece:
                if is_last:
                    return
                finished.wait(interval_sec)
