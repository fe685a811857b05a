"""Shows what workers print, line by whole line.

torch's ``tail_logfile`` (2.13.0) shows whatever a file holds at the moment: half a line, then the same line's rest with
its prefix once more, or the line of another rank in between. A worker's line arrives in pieces wherever it is written
in pieces (``print(..., end="")``, C++ streams), or where a write crosses a page of the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TextIO

from torch.distributed.elastic.multiprocessing import tail_log

#: So long the rest of a line is waited for: who looks on wants to see what a rank was about to do when it stopped.
REST_LIMIT_S = 2.0
#: A line longer than this is shown in parts.
_LONGEST = 64 * 1024
_FUNCTION = "tail_logfile"


@contextmanager
def whole_lines() -> Iterator[None]:
    """Let torch's ``TailLog`` show whole lines, where it is the one that we know."""
    torchs = getattr(tail_log, _FUNCTION, None)
    if torchs is None:
        yield
        return
    setattr(tail_log, _FUNCTION, tail_logfile)
    try:
        yield
    finally:
        setattr(tail_log, _FUNCTION, torchs)


def tail_logfile(
    header: str, file: str, dst: TextIO, finished: Event, interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:  # fmt: skip
    """Write to ``dst`` each line that is added to ``file``, behind ``header``, until ``finished`` and nothing is left.

    What has no end yet is shown, and ended, after ``REST_LIMIT_S`` seconds; its rest is then a line of its own. Every
    ``interval_sec`` seconds the file is looked at. A line that ``log_line_filter`` refuses is left out.

    Raises:
        OSError: the file cannot be read, or ``dst`` not be written.
    """
    while not Path(file).exists():
        if finished.wait(interval_sec):
            return
    begun, since = "", time.monotonic()
    with Path(file).open(errors="replace") as lines:
        while True:
            ended = finished.is_set()  # before the look: what was written until then is seen
            piece = lines.readline(_LONGEST)
            begun += piece
            whole = begun.endswith("\n") or len(begun) >= _LONGEST
            if begun and (whole or (not piece and (ended or time.monotonic() - since > REST_LIMIT_S))):
                line = begun if begun.endswith("\n") else begun + "\n"
                if log_line_filter is None or log_line_filter(line):
                    dst.write(header + line)
                begun = ""
            if not begun:
                since = time.monotonic()
            if not piece:
                if ended:
                    return
                finished.wait(interval_sec)
