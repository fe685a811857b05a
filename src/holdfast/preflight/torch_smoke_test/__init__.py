"""Run the start of a job: the store, the group, a barrier, and all-reduces with known sums.

:class:`SmokeTest` runs in one process per host, imports no torch and cannot hang: what may block
runs in processes of its own (``__main__``, which imports torch once and forks for each step and
rank), is monitored from inside (``stage_watchdog``) and killed from outside. Steps have 1, 2, 4, …
processes; the first failed step is the last. All ranks get the failure of any rank.
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

#: One element; a message that fits into one packet; larger ones, which detect lost large packets.
SIZES_BYTES = (4, 1 << 10, 1 << 16, 1 << 20, 4 << 20)
#: Reading Python and torch from a slow disk may take long; the stages themselves do not.
_IMPORT_LIMIT_S = 60.0
_MAX_BYTES = 1 << 20


class SmokeTestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters, equal on all ranks except ``rank``.

    ``backend``: default NCCL on GPUs, else gloo.

    ``limit_s`` is per stage; ``wait_s`` limits waiting for ranks, some of which may import torch
    slowly. ``local`` ranks from ``rank`` on are this host's. ``device``: the GPU of a single rank
    (None: its rank).
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
        """Return the process count of each step: 1 (each rank alone), 2, 4, … and all."""
        powers = (1 << at for at in range(self.world.bit_length()))
        return tuple(dict.fromkeys([*(size for size in powers if size < self.world), self.world]))


class StageTiming(msgspec.Struct, frozen=True):
    """One all-reduce size in bytes, and the best of three durations in seconds."""

    size_bytes: int
    best_s: float


class SmokeTestStage(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """A successful stage on this rank.

    ``processes``: those of its step, 0 before the first step.
    """

    name: str
    processes: int
    took_s: float
    detail: str = ""
    timings: tuple[StageTiming, ...] = ()


class SmokeTestFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """The failure of this or another rank; ``missing``: ranks that did not reach this stage."""

    rank: int
    host: str
    stage: str
    processes: int
    why: str
    missing: tuple[int, ...] = ()


class SmokeTestOutcome(msgspec.Struct, frozen=True):
    """The result as observed by one rank; successful if there are no failures."""

    stages: tuple[SmokeTestStage, ...]
    failures: tuple[SmokeTestFailure, ...]


class SmokeTest:
    """The subprocess that imports torch at once and then runs the steps. Close it at the end."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._buffer, self._bytes_read = b"", 0
        self._entries: list[SmokeTestStage | SmokeTestFailure] = []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        reader, writer = os.pipe()
        self._stdout = os.fdopen(reader, "rb", buffering=0)
        self._stdin, child_stdin = os.pipe()[::-1]
        command = [sys.executable, "-W", "ignore", "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=child_stdin, stdout=writer, stderr=self._stderr, start_new_session=True
        )
        os.close(writer)
        os.close(child_stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._stdout.close()
        self._stderr.close()
        os.close(self._stdin)

    def wait_for_import(self, limit_s: float) -> SmokeTestStage | SmokeTestFailure | None:
        """Return the result of importing torch.

        None if it takes longer than ``limit_s`` seconds.
        """
        self._read_entries(time.monotonic() + limit_s)
        return self._entries[0] if self._entries else None

    def run(
        self,
        plan: SmokeTestPlan,
        on_stage: Callable[[SmokeTestStage | SmokeTestFailure], None] | None = None,
    ) -> SmokeTestOutcome:
        """Run the steps together with the other ranks; ``on_stage`` gets each result as it ends."""
        with suppress(BrokenPipeError):  # the process has ended, which is reported below
            os.write(self._stdin, msgspec.json.encode(plan) + b"\n")
        until = (
            time.monotonic()
            + _IMPORT_LIMIT_S
            + (plan.wait_s + plan.limit_s) * (len(plan.steps) + 1)
        )
        reported = 0
        more = True
        while more:
            for entry in self._entries[reported:]:
                reported += 1
                if on_stage is not None:
                    on_stage(entry)
            more = self._read_entries(until)
        stages = tuple(entry for entry in self._entries if isinstance(entry, SmokeTestStage))
        failures = tuple(entry for entry in self._entries if isinstance(entry, SmokeTestFailure))
        if not failures and (not stages or stages[-1].processes < plan.world):
            self._kill()
            failures = (self._unexplained_failure(stages),)
        return SmokeTestOutcome(stages, failures)

    def _read_entries(self, until: float) -> bool:
        """Read at least one more entry before ``until``; return False if no more will arrive."""
        known = len(self._entries)
        with selectors.DefaultSelector() as ready:
            ready.register(self._stdout, selectors.EVENT_READ)
            while self._bytes_read < _MAX_BYTES and ready.select(max(until - time.monotonic(), 0)):
                data = self._stdout.read(1 << 16)
                if not data:
                    break
                self._bytes_read += len(data)
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    self._add_entry(
                        msgspec.json.decode(line, type=SmokeTestStage | SmokeTestFailure)
                    )
                if len(self._entries) > known:
                    return True
        if not self._entries and self._has_ended():
            self._entries.append(self._unexplained_failure(()))
            return True
        return False

    def _add_entry(self, entry: SmokeTestStage | SmokeTestFailure) -> None:
        """Add an entry, unless another process of this host has reported the same failure."""
        known = {each.rank for each in self._entries if isinstance(each, SmokeTestFailure)}
        if isinstance(entry, SmokeTestStage) or entry.rank not in known:
            self._entries.append(entry)

    def _has_ended(self) -> bool:
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill(self) -> None:
        """Kill the process and its forks, which share its session.

        One blocked in a driver is abandoned.
        """
        if self._has_ended():
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.returncode = -signal.SIGKILL

    def _unexplained_failure(self, stages: tuple[SmokeTestStage, ...]) -> SmokeTestFailure:
        """Return the failure of a process that ended without reporting one."""
        self._stderr.seek(0)
        lines = self._stderr.read(1 << 16).decode(errors="replace").strip().splitlines()
        why = (
            lines[-1][:300]
            if lines
            else f"its process ended with status {self._process.returncode}"
        )
        stage, at = ("step", stages[-1].processes) if stages else ("import", 0)
        return SmokeTestFailure(
            rank=self._rank, host=os.uname().nodename, stage=stage, processes=at, why=why
        )
