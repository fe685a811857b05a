"""Makes a small job of nothing but its beginning: the store, the group, a barrier, all-reduces whose sums are known.

:func:`run` is called by one process a rank, imports no torch and cannot hang: what may block runs in processes of its
own (``__main__``, which imports torch once, and a fork of it a step), is watched from inside (``watching``) and killed
from outside. Steps are of 1, 2, 4, … processes, and the first that fails is the last. What one rank fails with, all
learn.
"""

from __future__ import annotations

import io
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO

import msgspec

#: One element; a message that fits into a packet; then larger ones, which find paths that lose large packets.
SIZES_BYTES = (4, 1 << 10, 1 << 16, 1 << 20, 4 << 20)
#: Python and torch have to be read from a disk that may be slow; the stages themselves are not what takes long then.
_IMPORT_LIMIT_S = 60.0
_MOST_BYTES = 1 << 20


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried. All ranks have to be given the same, but for ``rank``. ``backend``: NCCL on GPUs, else gloo.

    ``limit_s`` is for one stage, ``wait_s`` for the ranks to come: torch may take long to import on one of them.
    """

    rank: int
    world: int
    address: str
    port: int
    backend: str = ""
    limit_s: float = 8.0
    wait_s: float = 20.0
    sizes_bytes: tuple[int, ...] = SIZES_BYTES

    @property
    def steps(self) -> tuple[int, ...]:
        """How many processes there are in each step: every rank by itself, then the first 2, 4, … and all of them."""
        powers = (1 << at for at in range(self.world.bit_length()))
        return tuple(dict.fromkeys([*(size for size in powers if size < self.world), self.world]))


class Timing(msgspec.Struct, frozen=True):
    """One size of the all-reduce: bytes, and the best of three in seconds."""

    size_bytes: int
    best_s: float


class Stage(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """One stage of a step that ended well on this rank; ``processes`` in the step, 0 before the first."""

    name: str
    processes: int
    took_s: float
    detail: str = ""
    timings: tuple[Timing, ...] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """What a rank, this one or another, failed with. ``missing``: ranks that were not seen to come to this stage."""

    rank: int
    host: str
    stage: str
    processes: int
    why: str
    missing: tuple[int, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """All of it, as seen by one rank; without failures all is well."""

    stages: tuple[Stage, ...]
    failures: tuple[Failure, ...]


def run(plan: Plan, tell: Callable[[Stage | Failure], None] | None = None) -> Outcome:
    """Go through the steps together with the other ranks; ``tell`` hears of each stage as it ends."""
    stages: list[Stage] = []
    failures: list[Failure] = []
    until = time.monotonic() + _IMPORT_LIMIT_S + (plan.wait_s + plan.limit_s) * (len(plan.steps) + 1)
    command = [sys.executable, "-W", "ignore", "-m", __name__, msgspec.json.encode(plan).decode()]
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as complaints, os.fdopen(reader, "rb", buffering=0) as said:
        probe = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=writer, stderr=complaints, start_new_session=True
        )
        os.close(writer)
        try:
            for entry in _entries(said, until):
                if isinstance(entry, Stage):
                    stages.append(entry)
                else:
                    failures.append(entry)
                if tell is not None:
                    tell(entry)
        finally:
            _end(probe)
        if not failures and (not stages or stages[-1].processes < plan.world):
            failures.append(_silent(plan, stages, complaints, probe.returncode))
    return Outcome(tuple(stages), tuple(failures))


def _entries(said: io.FileIO, until: float) -> Iterator[Stage | Failure]:
    """What the probe says, line by line, as long as it has time."""
    held, read = b"", 0
    with selectors.DefaultSelector() as ready:
        ready.register(said, selectors.EVENT_READ)
        while read < _MOST_BYTES and ready.select(max(until - time.monotonic(), 0)):
            part = said.read(1 << 16)
            if not part:
                return
            read += len(part)
            *lines, held = (held + part).split(b"\n")
            for line in lines:
                yield msgspec.json.decode(line, type=Stage | Failure)


def _end(probe: subprocess.Popen[bytes]) -> None:
    """Kill it and its forks, which share its session; one that waits in a driver is left behind."""
    try:
        probe.wait(0.2)
    except subprocess.TimeoutExpired:
        os.killpg(probe.pid, signal.SIGKILL)
        try:
            probe.wait(1)
        except subprocess.TimeoutExpired:
            probe.returncode = -signal.SIGKILL


def _silent(plan: Plan, stages: list[Stage], complaints: IO[bytes], status: int) -> Failure:
    """The probe ended, or was killed, before it could say what failed."""
    complaints.seek(0)
    lines = complaints.read(1 << 16).decode(errors="replace").strip().splitlines()
    why = lines[-1][:300] if lines else f"its process ended with status {status}, and said nothing"
    at = stages[-1].processes if stages else 0
    return Failure(
        rank=plan.rank, host=os.uname().nodename, stage="import" if not stages else "step", processes=at, why=why
    )
