"""Reads what py-spy and faulthandler write of a process's threads; the text is taken as hostile, and bounded."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.facts.ranks import Place, Stack
from holdfast.findings import Unknown

MAIN = "MainThread"
MOST_BYTES = 16 << 20
MOST_THREADS = 1024
MOST_FRAMES = 512
_MOST_CHARACTERS = 1024
_MOST_LINE = (1 << 31) - 1

_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-fA-F]{1,32})(?: \[(.*)\])? \(most recent call first\):?\s*$")
_FRAME = re.compile(r'  File "(.*)", line (\d{1,10}) in (.*)$')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


class SpiedFrame(msgspec.Struct, gc=False):
    """A frame as py-spy writes it in JSON; ``module`` is the library of a frame of native code."""

    name: str = ""
    filename: str = ""
    line: int = 0
    module: str | None = None


class SpiedThread(msgspec.Struct, gc=False):
    """A thread as py-spy writes it in JSON."""

    pid: int | None = None
    os_thread_id: int | None = None
    thread_name: str | None = None
    active: bool | None = None
    owns_gil: bool | None = None
    frames: list[SpiedFrame] = []


_DUMP = msgspec.json.Decoder(list[SpiedThread])


def from_py_spy(output: bytes, pid: int, folder: str = "") -> tuple[Stack, ...] | Unknown:
    """The threads in ``py-spy dump --json``, the main thread first; relative paths are meant from ``folder``."""
    if len(output) > MOST_BYTES:
        return Unknown(f"py-spy wrote {len(output) >> 20} MiB about process {pid}, more than is read")
    threads = spied_threads(output)
    if isinstance(threads, Unknown):
        return Unknown(f"py-spy wrote what cannot be read about process {pid}: {threads.why}")
    return stacks_of(threads, pid, Stack((), origin="py-spy", time=time.time()), folder)


def spied_threads(output: bytes) -> list[SpiedThread] | Unknown:
    """The threads in ``py-spy dump --json``, as they stand there."""
    try:
        return _DUMP.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Unknown(str(error))


def stacks_of(threads: Sequence[SpiedThread], main: int | None, like: Stack, folder: str = "") -> tuple[Stack, ...]:
    """The stacks of threads of one process, with origin and time as ``like`` has them; native frames are left out.

    ``main`` is the number that the system gave the main thread.
    """
    stacks = []
    for number, thread in enumerate(threads[:MOST_THREADS]):
        called = (frame for frame in thread.frames[:MOST_FRAMES] if frame.module is None)
        frames = tuple(_place(frame.filename, frame.line, frame.name, folder) for frame in called)
        is_main = main is not None and thread.os_thread_id == main
        name = MAIN if is_main else _other(thread.thread_name, number)
        holds_lock = thread.owns_gil is True and thread.active is False
        stacks.append(replace(like, frames=frames, thread=name, holds_lock=holds_lock))
    return _main_first(stacks)


def from_faulthandler(text: str, folder: str = "") -> tuple[Stack, ...] | Unknown:
    """The threads in a dump by faulthandler, the main thread first. Of a thread dumped twice, the newer stack counts.

    The interpreter lists threads newest first, so that the main thread stands last; where it gave up before (at 100
    threads), the one that ran the signal's handler is taken, which is the main thread nearly always.
    """
    found: dict[str, list[Place]] = {}
    names: dict[str, str] = {}
    current, thread = "", ""
    for line in text[-MOST_BYTES:].splitlines():
        if head := _THREAD.match(line):
            thread = head[2]
            current = thread if head[1].startswith("Current") else current
            found.pop(thread, None)
            if len(found) < MOST_THREADS:
                found[thread] = []
            names[thread] = head[3] or ""
        elif (frame := _FRAME.match(line)) and thread in found and len(found[thread]) < MOST_FRAMES:
            found[thread].append(_place(_unescaped(frame[1]), int(frame[2]), frame[3], folder))
    if not found:
        return Unknown("faulthandler's dump names no thread")
    gave_up = any(line == "..." for line in text.splitlines())
    main = current if gave_up and current else next(reversed(found))
    now = time.time()
    return _main_first(
        Stack(tuple(frames), MAIN if key == main else _other(names[key], number), "faulthandler", now)
        for number, (key, frames) in enumerate(found.items())
    )


def _main_first(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    return tuple(sorted(stacks, key=lambda stack: stack.thread != MAIN))


def _other(name: str | None, number: int) -> str:
    """The name of a thread that is not the main one, whatever it calls itself."""
    return name[:_MOST_CHARACTERS] if name and name != MAIN else f"thread {number}"


def _place(file: str, line: int, function: str, folder: str) -> Place:
    file, function = file[:_MOST_CHARACTERS], function[:_MOST_CHARACTERS]
    if folder and file and not file.startswith(("/", "<")):
        file = str(Path(folder) / file)
    # py-spy puts the class in front (Trainer.step), faulthandler and the recorder do not: keep what all of them say
    return Place(file, line if 0 <= line <= _MOST_LINE else 0, function.rpartition(".")[2] or function)


def _unescaped(file: str) -> str:
    """Characters beyond ASCII are dumped as escapes, backslashes as they are: what may be either is left."""

    def character(match: re.Match[str]) -> str:
        number = int(match[1] or match[2] or match[3], 16)
        return chr(number) if 0x80 <= number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else match[0]

    return _ESCAPED.sub(character, file)
