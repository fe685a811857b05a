"""Makes a small job of nothing but its beginning: the store, the group, a barrier, all-reduces whose sums are known.

:func:`run` is called by one process a host, imports no torch and cannot hang: what may block runs in processes of its
own (``__main__``, which imports torch once, and forks for a step and rank), is watched from inside (``watching``) and
killed from outside. Steps are of 1, 2, 4, … processes, and the first that fails is the last. What one rank fails with,
all learn.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import msgspec

#: One element; a message that fits into a packet; then larger ones, which find paths that lose large packets.
SIZES_BYTES = (4, 1 << 10, 1 << 16, 1 << 20, 4 << 20)
#: Python and torch have to be read from a disk that may be slow; the stages themselves are not what takes long then.
_IMPORT_LIMIT_S = 60.0
_MOST_BYTES = 1 << 20


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried. All ranks have to be given the same, but for ``rank``. ``backend``: NCCL on GPUs, else gloo.

    ``limit_s`` is for one stage, ``wait_s`` for the ranks to come, of which one may import torch more slowly.
    ``local`` ranks from ``rank`` on are this host's; ``device`` is the GPU of a single one, its rank where it is None.
    """

    rank: int
    world: int
    local: int = 1
    device: int | None = None
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
    with Probe(plan.rank) as probe:
        return probe.run(plan, tell)


class Probe:
    """The process that imports torch, which it begins at once, and then goes through the steps. Close it at the end."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._held, self._read = b"", 0
        self._entries: list[Stage | Failure] = []
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - close() does it
        reader, writer = os.pipe()
        self._said = os.fdopen(reader, "rb", buffering=0)
        self._asked, asked = os.pipe()[::-1]
        command = [sys.executable, "-W", "ignore", "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=asked, stdout=writer, stderr=self._complaints, start_new_session=True
        )
        os.close(writer)
        os.close(asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._said.close()
        self._complaints.close()
        os.close(self._asked)

    def imported(self, limit_s: float) -> Stage | Failure | None:
        """How the import of torch went; None where it is not over within so many seconds."""
        self._listen(time.monotonic() + limit_s)
        return self._entries[0] if self._entries else None

    def run(self, plan: Plan, tell: Callable[[Stage | Failure], None] | None = None) -> Outcome:
        """See :func:`run`."""
        with suppress(BrokenPipeError):  # it has ended, and that will be said
            os.write(self._asked, msgspec.json.encode(plan) + b"\n")
        until = time.monotonic() + _IMPORT_LIMIT_S + (plan.wait_s + plan.limit_s) * (len(plan.steps) + 1)
        told = 0
        more = True
        while more:
            for entry in self._entries[told:]:
                told += 1
                if tell is not None:
                    tell(entry)
            more = self._listen(until)
        stages = tuple(entry for entry in self._entries if isinstance(entry, Stage))
        failures = tuple(entry for entry in self._entries if isinstance(entry, Failure))
        if not failures and (not stages or stages[-1].processes < plan.world):
            self._end()
            failures = (self._silent(stages),)
        return Outcome(stages, failures)

    def _listen(self, until: float) -> bool:
        """Hear at least one more entry, within this time; False where no more will come."""
        known = len(self._entries)
        with selectors.DefaultSelector() as ready:
            ready.register(self._said, selectors.EVENT_READ)
            while self._read < _MOST_BYTES and ready.select(max(until - time.monotonic(), 0)):
                part = self._said.read(1 << 16)
                if not part:
                    break
                self._read += len(part)
                *lines, self._held = (self._held + part).split(b"\n")
                for line in lines:
                    self._hear(msgspec.json.decode(line, type=Stage | Failure))
                if len(self._entries) > known:
                    return True
        if not self._entries and self._ended():
            self._entries.append(self._silent(()))
            return True
        return False

    def _hear(self, entry: Stage | Failure) -> None:
        """What one rank fails with, every process of this host says."""
        known = {each.rank for each in self._entries if isinstance(each, Failure)}
        if isinstance(entry, Stage) or entry.rank not in known:
            self._entries.append(entry)

    def _ended(self) -> bool:
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _end(self) -> None:
        """Kill it and its forks, which share its session; one that waits in a driver is left behind."""
        if self._ended():
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.returncode = -signal.SIGKILL

    def _silent(self, stages: tuple[Stage, ...]) -> Failure:
        """It ended, or was killed, before it could say what failed."""
        self._complaints.seek(0)
        lines = self._complaints.read(1 << 16).decode(errors="replace").strip().splitlines()
        why = lines[-1][:300] if lines else f"its process ended with status {self._process.returncode}"
        stage, at = ("step", stages[-1].processes) if stages else ("import", 0)
        return Failure(rank=self._rank, host=os.uname().nodename, stage=stage, processes=at, why=why)
