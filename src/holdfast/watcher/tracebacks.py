"""Reads exceptions and crashes from text: the end of a rank's stderr, a wrapping exception's text.

A rank that handles its own exception (``except Exception: traceback.print_exc(); os._exit(1)``)
leaves no exception in its trace, but its stderr shows it. An exception of a data-loader worker or
of a spawned process reaches the rank as text inside another one. The text is untrusted input: its
size is bounded before anything is searched.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.rank_table import RaisedException, SourceLine, ThreadStack
from holdfast.host.processes.stack_text import from_crash
from holdfast.host.processes.user_code import innermost_user_frame

#: Bytes read from the end of a file, and characters of a line.
MAX_BYTES, MAX_LINE = 1 << 16, 2000
#: An exception that more lines follow did not end the process.
MAX_LINES_AFTER = 100
#: Lines of an exception's text, and frames of its traceback.
MAX_TEXT_LINES, MAX_FRAMES = 20, 64
_PREFIX = re.compile(r"\[rank\d{1,6}\]: ?")  # torch's excepthook
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s{1,8}File "([^"]{1,1000})", line (\d{1,9})(?:, in (.{1,200}))?')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?$")
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^']{1,200})'")
_WHAT = "what():"


def read_exception(path: Path, *, aborted: bool = False) -> RaisedException | None:
    """Return the exception that ended a process, from the end of the file of its stderr.

    ``aborted``: the process was ended by SIGABRT, so a C++ exception is searched for instead.
    """
    lines = [_PREFIX.sub("", line) for line in _last_lines(path)]
    found = _find_cpp_exception(lines) if aborted else _find_exception(lines, MAX_LINES_AFTER)
    return replace(found, origin=str(path)) if found is not None else None


def original_exception(raised: RaisedException) -> RaisedException:
    """Return the exception whose traceback the text of ``raised`` contains, or ``raised``.

    Its frames precede those of ``raised``.
    """
    if "Traceback (most recent call last)" not in raised.text:
        return raised
    lines = [line[:MAX_LINE] for line in raised.text.splitlines()]
    found = _find_exception(lines, len(lines))
    if found is None:
        return raised
    return replace(
        found,
        place=found.place or raised.place,
        origin=raised.origin,
        frames=(*found.frames, *raised.frames),
    )


def read_crash(path: Path) -> ThreadStack | None:
    """Return the stack that faulthandler wrote to the end of a file when the process crashed.

    None if it has no Python frame: the process crashed outside of Python code, or at its end.
    """
    stack = from_crash(_read_end(path))
    return stack if isinstance(stack, ThreadStack) and stack.frames else None


def _last_lines(path: Path) -> list[str]:
    return [line[:MAX_LINE] for line in _read_end(path).split("\n")]


def _read_end(path: Path) -> str:
    """Return the end of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - MAX_BYTES, 0))
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _find_exception(lines: Sequence[str], max_after: int) -> RaisedException | None:
    """Return the exception of the last complete traceback."""
    headers = [at for at, line in enumerate(lines) if line.strip().endswith(_HEADER)]
    for header in reversed(headers):
        found = _parse_traceback(lines, header)
        if found is not None:
            raised, end = found
            return raised if len(lines) - end <= max_after else None
    return None


def _parse_traceback(lines: Sequence[str], header: int) -> tuple[RaisedException, int] | None:
    """Return the exception of the traceback that begins there, and the line after it."""
    margin = len(lines[header]) - len(lines[header].lstrip())
    frames: list[SourceLine] = []
    for at in range(header + 1, len(lines)):
        line = lines[at][margin:]
        frame = _FRAME.match(line)
        if frame:
            frames.append(SourceLine(frame[1], int(frame[2]), frame[3] or ""))
        elif line and not line[0].isspace():
            exception = _EXCEPTION.match(line)
            if exception is None or not frames:
                return None
            text, end = _exception_text(lines, at, exception[2] or "")
            stack = tuple(reversed(frames))
            place = innermost_user_frame(ThreadStack(stack))
            kind = exception[1].rpartition(".")[2]
            return RaisedException(kind, text, place, frames=stack[:MAX_FRAMES]), end
    return None


def _exception_text(lines: Sequence[str], at: int, first: str) -> tuple[str, int]:
    end = at + 1
    while end < min(len(lines), at + MAX_TEXT_LINES) and lines[end].strip():
        end += 1
    return "\n".join((first, *lines[at + 1 : end])), end


def _find_cpp_exception(lines: Sequence[str]) -> RaisedException | None:
    for at in range(len(lines) - 1, -1, -1):
        thrown = _TERMINATE.search(lines[at])
        if thrown is not None:
            what = lines[at + 1].strip() if at + 1 < len(lines) else ""
            text = what.removeprefix(_WHAT).strip() if what.startswith(_WHAT) else ""
            return RaisedException(thrown[1], text)
    return None


def stderr_file(pid: int) -> Path | None:
    """Return the regular file to which a living process writes its stderr; None if it has none."""
    try:
        path = Path(f"/proc/{pid}/fd/2").readlink()
        return path if stat.S_ISREG(path.stat().st_mode) else None
    except OSError:
        return None
