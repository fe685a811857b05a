"""Parses thread dumps of py-spy and faulthandler; the input is untrusted, and its size limited."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import SourceLine, ThreadStack

MAIN_THREAD = "MainThread"
MAX_BYTES = 16 << 20
MAX_THREADS = 1024
MAX_FRAMES = 512
_MAX_CHARACTERS = 1024
_MAX_LINE = (1 << 31) - 1

_THREAD = re.compile(
    r"(Current thread|Thread) 0x([0-9a-fA-F]{1,32})(?: \[(.*)\])? \(most recent call first\):?\s*$"
)
_FRAME = re.compile(r'  File "(.*)", line (\d{1,10}) in (.*)$')
_FATAL, _CURRENT = "Fatal Python error: ", "Current thread 0x"
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


class SpiedFrame(msgspec.Struct, gc=False):
    """A frame in py-spy's JSON; ``module`` is the library of a native frame."""

    name: str = ""
    filename: str = ""
    line: int = 0
    module: str | None = None


class SpiedThread(msgspec.Struct, gc=False):
    """A thread in py-spy's JSON."""

    pid: int | None = None
    os_thread_id: int | None = None
    thread_name: str | None = None
    active: bool | None = None
    owns_gil: bool | None = None
    frames: list[SpiedFrame] = []


_DUMP = msgspec.json.Decoder(list[SpiedThread])


def from_py_spy(
    output: bytes, pid: int, folder: str = "", main: int | None = None, root: str = ""
) -> tuple[ThreadStack, ...] | Unknown:
    """Parse ``py-spy dump --json``, the main thread first; relative paths start at ``folder``.

    ``main`` is the OS thread id of the main thread; ``pid`` unless the process is in a container.
    ``root`` comes before absolute paths.
    """
    if len(output) > MAX_BYTES:
        return Unknown(
            f"py-spy wrote {len(output) >> 20} MiB about process {pid}, which exceeds the limit"
        )
    threads = spied_threads(output)
    if isinstance(threads, Unknown):
        return Unknown(f"unreadable py-spy output for process {pid}: {threads.why}")
    like = ThreadStack((), origin="py-spy", time=time.time())
    return stacks_of(threads, pid if main is None else main, like, folder, root)


def spied_threads(output: bytes) -> list[SpiedThread] | Unknown:
    """Return the threads in ``py-spy dump --json`` unchanged."""
    try:
        return _DUMP.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Unknown(str(error))


def stacks_of(
    threads: Sequence[SpiedThread],
    main: int | None,
    like: ThreadStack,
    folder: str = "",
    root: str = "",
) -> tuple[ThreadStack, ...]:
    """Return the stacks of one process without native frames, with origin and time of ``like``.

    ``main`` is the OS thread id of the main thread.
    """
    stacks = []
    for number, thread in enumerate(threads[:MAX_THREADS]):
        python = (frame for frame in thread.frames[:MAX_FRAMES] if frame.module is None)
        frames = tuple(
            _source_line(frame.filename, frame.line, frame.name, folder, root) for frame in python
        )
        is_main = main is not None and thread.os_thread_id == main
        name = MAIN_THREAD if is_main else _other_name(thread.thread_name, number)
        holds_lock = thread.owns_gil is True and thread.active is False
        stacks.append(replace(like, frames=frames, thread=name, holds_lock=holds_lock))
    return _main_first(stacks)


def from_faulthandler(text: str, folder: str = "") -> tuple[ThreadStack, ...] | Unknown:
    """The threads in a dump by faulthandler, the main thread first.

    Of a thread dumped twice, the newer stack counts. The interpreter lists threads newest first,
    so that the main thread stands last; where it gave up before (at 100 threads), the one that ran
    the signal's handler is taken, which is the main thread nearly always.
    """
    found: dict[str, list[SourceLine]] = {}
    names: dict[str, str] = {}
    current, thread = "", ""
    for line in text[-MAX_BYTES:].splitlines():
        if head := _THREAD.match(line):
            thread = head[2]
            current = thread if head[1].startswith("Current") else current
            found.pop(thread, None)
            if len(found) < MAX_THREADS:
                found[thread] = []
            names[thread] = head[3] or ""
        elif (frame := _FRAME.match(line)) and thread in found and len(found[thread]) < MAX_FRAMES:
            found[thread].append(_source_line(_unescape(frame[1]), int(frame[2]), frame[3], folder))
    if not found:
        return Unknown("faulthandler's dump contains no thread")
    truncated = any(line == "..." for line in text.splitlines())
    main = current if truncated and current else next(reversed(found))
    now = time.time()
    return _main_first(
        ThreadStack(
            tuple(frames),
            MAIN_THREAD if key == main else _other_name(names[key], number),
            "faulthandler",
            now,
        )
        for number, (key, frames) in enumerate(found.items())
    )


def from_crash(text: str, folder: str = "") -> ThreadStack | Unknown:
    """Return the stack of a crash, from the last dump of a fatal signal by faulthandler.

    It is that of the crashed thread; if that runs no Python code, of the main thread.
    """
    _, found, dump = text[-MAX_BYTES:].rpartition(_FATAL)
    if not found:
        return Unknown("faulthandler dumped no fatal signal")
    _, current, rest = dump.partition(_CURRENT)
    crashed = from_faulthandler(current + rest.partition("\n\n")[0], folder)
    if not isinstance(crashed, Unknown) and crashed[0].frames:
        return crashed[0]
    threads = from_faulthandler(dump, folder)
    return threads if isinstance(threads, Unknown) else threads[0]


def _main_first(stacks: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    return tuple(sorted(stacks, key=lambda stack: stack.thread != MAIN_THREAD))


def _other_name(name: str | None, number: int) -> str:
    """Return the name of a thread other than the main thread."""
    return name[:_MAX_CHARACTERS] if name and name != MAIN_THREAD else f"thread {number}"


def _source_line(file: str, line: int, function: str, folder: str, root: str = "") -> SourceLine:
    file, function = file[:_MAX_CHARACTERS], function[:_MAX_CHARACTERS]
    if folder and file and not file.startswith(("/", "<")):
        file = str(Path(folder) / file)
    if file.startswith("/"):
        file = root + file
    # py-spy prefixes the class (Trainer.step), faulthandler and the recorder do not: keep the
    # common part
    return SourceLine(
        file, line if 0 <= line <= _MAX_LINE else 0, function.rpartition(".")[2] or function
    )


def _unescape(file: str) -> str:
    """Decode escaped non-ASCII characters; ambiguous ones are kept (backslashes are unescaped)."""

    def character(match: re.Match[str]) -> str:
        number = int(match[1] or match[2] or match[3], 16)
        return (
            chr(number)
            if 0x80 <= number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
            else match[0]
        )

    return _ESCAPED.sub(character, file)
