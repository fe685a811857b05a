"""Inject faults into a training process, to test their detection: ``hang@rank=2,step=30``.

Grammar: ``KIND@key=value,…``; ``;`` separates several faults. Keys: ``rank`` (a number, several as
``1|3``, or ``all``), one of ``step`` (after that optimizer step, or when the script reports it),
``collective`` (at the n-th collective of the process) and ``phase`` (when the rank enters a phase
such as ``checkpoint`` or ``evaluation``, the first time or at the given ``visit``; ``start``: right
after torch is imported), ``generation`` (0: only the first start; ``all``: after every restart
too), ``seconds`` (of ``slow``, ``slow-disk`` and ``clock-jump``) and ``code`` (of ``exit``). Faults
are real: the signal is sent, the collective is skipped; the three simulated ones are marked.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import recorder
from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.core.trace_file import TraceNote, TraceWriter

#: Every fault and its effect, as listed by ``holdfast chaos``.
FAULT_KINDS: dict[str, str] = {
    "hang": "the rank sleeps indefinitely in Python",
    "exit": "the rank exits immediately with status `code` (default 1), without cleanup",
    "sigkill": "the rank is killed by SIGKILL",
    "sigstop": "the rank is stopped by SIGSTOP",
    "exception": "the rank raises RuntimeError",
    "slow": "the rank sleeps `seconds` (default 1) at every step from then on",
    "skip-collective": "the rank skips its next collective",
    "wrong-shape": "the rank's next collective has one extra element",
    "wrong-order": "the rank enters a barrier before its next collective",
    "early-end": "the rank calls sys.exit(0)",
    "out-of-memory": "the rank gets a limit of 64 MiB more memory, and exceeds it",
    "corrupt": "the rank's next collective sends NaN",
    "device-oom": "the rank raises torch.OutOfMemoryError, as on a full GPU (simulated)",
    "fill-memory": "the rank allocates host memory until the kernel kills it, 2 GiB at most: "
    "set a memory limit first",
    "kill-loader": "one of the rank's data-loader workers is killed by SIGKILL",
    "slow-disk": "every fsync of the rank takes `seconds` (default 1) longer from then on "
    "(simulated)",
    "clock-jump": "the rank's time.time() is `seconds` (default 1) ahead from then on (simulated)",
}
_KEYS = ("rank", "step", "collective", "phase", "visit", "generation", "seconds", "code")
_TRIGGERS = ("step", "collective", "phase")
#: The phase of a rank right after its import of torch.
START = "start"
_ON_COLLECTIVE = frozenset({"skip-collective", "wrong-shape", "wrong-order", "corrupt"})
_CHUNK_BYTES = 64 << 20
_FILL_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: its kind, ranks (None: all), trigger, and generation (None: all)."""

    kind: str
    ranks: tuple[int, ...] | None
    step: int | None = None
    collective: int | None = None
    phase: str | None = None
    visit: int = 1
    generation: int | None = 0
    seconds: float = 1.0
    code: int = 1


def parse_fault(text: str) -> tuple[Fault, ...]:
    """Parse a list of faults.

    Raises:
        UnknownName: unknown kind or key (with similar names).
        InvalidValue: anything else that does not match the grammar.
    """
    return tuple(_parse_one(part.strip()) for part in text.split(";") if part.strip())


def _parse_one(text: str) -> Fault:
    kind, _, rest = text.partition("@")
    if kind not in FAULT_KINDS:
        raise UnknownName("fault", kind, FAULT_KINDS, next_step=None)
    values: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key not in _KEYS:
            raise UnknownName("key of a fault", key, _KEYS)
        if not equals or not value:
            raise InvalidValue(
                f"the fault {text!r}",
                why=f"{key} has no value",
                next_step="e.g. hang@rank=2,step=30",
            )
        values[key] = value
    if sum(key in values for key in _TRIGGERS) != 1:
        why = "specify exactly one of step=, collective= and phase="
        raise InvalidValue(f"the fault {text!r}", why=why, next_step=f"e.g. {kind}@rank=2,step=30")
    try:
        return Fault(
            kind=kind,
            ranks=None
            if values.get("rank", "all") == "all"
            else tuple(int(rank) for rank in values["rank"].split("|")),
            step=int(values["step"]) if "step" in values else None,
            collective=int(values["collective"]) if "collective" in values else None,
            phase=values.get("phase"),
            visit=int(values.get("visit", "1")),
            generation=None
            if values.get("generation") == "all"
            else int(values.get("generation", "0")),
            seconds=float(values.get("seconds", "1")),
            code=int(values.get("code", "1")),
        )
    except ValueError as error:
        raise InvalidValue(
            f"the fault {text!r}", why=str(error), next_step="e.g. hang@rank=2,step=30"
        ) from error


def arm_faults(text: str, trace: TraceWriter, *, rank: int, generation: int) -> None:
    """Install the faults of ``text`` that apply to this rank and generation."""
    own_faults = [
        fault
        for fault in parse_fault(text)
        if (fault.ranks is None or rank in fault.ranks) and fault.generation in (None, generation)
    ]
    if not own_faults:
        return
    injector = _FaultInjector(trace, own_faults)
    recorder.step_listeners.append(injector.at_step)
    recorder.phase_listeners.append(injector.at_phase)
    if any(fault.collective is not None or fault.kind in _ON_COLLECTIVE for fault in own_faults):
        # imports torch
        from holdfast.recorder.faulty_operators import register_faulty_kernels

        register_faulty_kernels(injector.at_collective)
    injector.at_phase(START)


class _FaultInjector:
    """Decides at each step, phase and collective whether a fault is due."""

    def __init__(self, trace: TraceWriter, faults: list[Fault]) -> None:
        self._trace = trace
        self._pending = faults
        self._next: str | None = None
        self._slow_s = 0.0
        self._collectives = 0
        self._visits: Counter[str] = Counter()

    def at_step(self, number: int) -> None:
        """Handle the start of step ``number``."""
        if self._slow_s:
            time.sleep(self._slow_s)
        for fault in [
            fault for fault in self._pending if fault.step is not None and number >= fault.step
        ]:
            self._apply(fault)

    def at_phase(self, name: str) -> None:
        """Handle the start of a phase."""
        self._visits[name] += 1
        for fault in [
            fault
            for fault in self._pending
            if fault.phase == name and self._visits[name] >= fault.visit
        ]:
            self._apply(fault)

    def at_collective(self) -> str | None:
        """Return the fault to apply to the next collective, if any."""
        self._collectives += 1
        for fault in [fault for fault in self._pending if fault.collective == self._collectives]:
            self._apply(fault)
        due, self._next = self._next, None
        return due

    def _apply(self, fault: Fault) -> None:
        self._pending.remove(fault)
        self._trace.note(TraceNote.WORD, f"injected: {fault.kind}")
        if fault.kind in _ON_COLLECTIVE:
            self._next = fault.kind
        elif fault.kind == "slow":
            self._slow_s = fault.seconds
        elif fault.kind == "exit":
            os._exit(fault.code)
        elif fault.kind in _PERSISTENT_ACTIONS:
            _PERSISTENT_ACTIONS[fault.kind](fault.seconds)
        else:
            _ACTIONS[fault.kind]()


def hang() -> None:
    """Sleep indefinitely."""
    while True:
        time.sleep(3600)


def _raise() -> None:
    raise RuntimeError("injected exception")


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit_early() -> None:
    sys.exit(0)


def _exceed_memory_limit() -> None:
    """Exceed a limit of this process, so that no other process loses memory."""
    import resource

    import torch

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (size + _CHUNK_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1])
    )
    torch.empty(2 * _CHUNK_BYTES, dtype=torch.uint8)


def _run_out_on_device() -> None:
    import torch

    message = "CUDA out of memory. Tried to allocate 2.00 GiB. (injected, no device involved)"
    raise torch.OutOfMemoryError(message)


def _fill_memory() -> None:
    """Allocate and touch memory in chunks until the kernel kills a process."""
    chunks = [b"\1" * _CHUNK_BYTES for _ in range(_FILL_BYTES // _CHUNK_BYTES)]
    message = (
        f"allocated {len(chunks) * _CHUNK_BYTES >> 20} MiB without being killed: no "
        "memory limit is set"
    )
    raise RuntimeError(message)


def _kill_loader() -> None:
    """Kill the first multiprocessing child, once there is one."""
    import multiprocessing

    for child in multiprocessing.active_children():
        if child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
            return
    raise RuntimeError(
        "the rank has no data-loader worker: num_workers is 0, or none was started yet"
    )


def _slow_disk(seconds: float) -> None:
    real = os.fsync

    def slow(fd: Any) -> None:
        time.sleep(seconds)
        real(fd)

    os.fsync = slow


def _advance_clock(seconds: float) -> None:
    real = time.time
    time.time = lambda: real() + seconds


_PERSISTENT_ACTIONS: dict[str, Callable[[float], None]] = {
    "slow-disk": _slow_disk,
    "clock-jump": _advance_clock,
}
_ACTIONS: dict[str, Callable[[], None]] = {
    "hang": hang,
    "sigkill": _kill,
    "sigstop": _stop,
    "exception": _raise,
    "early-end": _exit_early,
    "out-of-memory": _exceed_memory_limit,
    "device-oom": _run_out_on_device,
    "fill-memory": _fill_memory,
    "kill-loader": _kill_loader,
}
