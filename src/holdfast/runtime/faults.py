"""Injects faults into a training process, to prove that they are found: ``hang@rank=2,step=30``.

The grammar is ``KIND@key=value,…``; several faults are separated by ``;``. Keys: ``rank`` (a number, several as
``1|3``, or ``all``), one of ``step`` (after that optimizer step, or when the script says that step), ``collective``
(at the n-th collective of the process) and ``phase`` (as the rank enters a phase such as ``checkpoint`` or
``evaluation``, the first time or at the ``visit`` that is given; ``start``: as soon as torch is imported),
``generation`` (0: the first start only; ``all``: after every restart too), ``seconds`` (of ``slow``, ``slow-disk`` and
``clock-jump``) and ``code`` (of ``exit``). Faults happen for real: the signal is sent, the collective is left out; the
three that are simulated say so.
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

from holdfast.blackbox import BoxWriter, Note
from holdfast.errors import BadValue, UnknownName

#: Every fault and what it does, as ``holdfast chaos`` lists them.
KINDS: dict[str, str] = {
    "hang": "the rank sleeps for ever in Python",
    "exit": "the rank ends at once with status `code` (default 1), without cleaning up",
    "sigkill": "the rank is killed by SIGKILL",
    "sigstop": "the rank is stopped by SIGSTOP and stays so",
    "exception": "the rank raises RuntimeError",
    "slow": "the rank sleeps `seconds` (default 1) at every step from there on",
    "skip-collective": "the rank leaves out its next collective",
    "wrong-shape": "the rank's next collective has one element more",
    "wrong-order": "the rank enters a barrier ahead of its next collective",
    "early-end": "the rank calls sys.exit(0)",
    "out-of-memory": "the rank may allocate 64 MiB more, and tries to take more than that",
    "corrupt": "the rank's next collective sends NaN",
    "device-oom": "the rank raises torch.OutOfMemoryError, as an allocation on a full GPU does (simulated)",
    "fill-memory": "the rank takes host memory until the kernel kills it, but no more than 2 GiB: set a limit before",
    "kill-loader": "one of the rank's data-loader processes is killed by SIGKILL",
    "slow-disk": "every fsync of the rank takes `seconds` (default 1) longer from there on (simulated)",
    "clock-jump": "the rank's time.time() is `seconds` (default 1) ahead from there on (simulated)",
}
_KEYS = ("rank", "step", "collective", "phase", "visit", "generation", "seconds", "code")
_WHEN = ("step", "collective", "phase")
#: The phase that a rank is in until its script goes on after the import of torch.
START = "start"
_ON_COLLECTIVE = frozenset({"skip-collective", "wrong-shape", "wrong-order", "corrupt"})
_ROOM_BYTES = 64 << 20
_FILL_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what, to whom (None: every rank), when, and in which generation (None: in each)."""

    kind: str
    ranks: tuple[int, ...] | None
    step: int | None = None
    collective: int | None = None
    phase: str | None = None
    visit: int = 1
    generation: int | None = 0
    seconds: float = 1.0
    code: int = 1


def parse(text: str) -> tuple[Fault, ...]:
    """The faults that ``text`` asks for.

    Raises:
        UnknownName: a kind or key that does not exist (with what is near).
        BadValue: anything else that does not fit the grammar.
    """
    return tuple(_parse_one(part.strip()) for part in text.split(";") if part.strip())


def _parse_one(text: str) -> Fault:
    kind, _, rest = text.partition("@")
    if kind not in KINDS:
        raise UnknownName("fault", kind, KINDS, next_step=None)
    given: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key not in _KEYS:
            raise UnknownName("key of a fault", key, _KEYS)
        if not equals or not value:
            raise BadValue(f"the fault {text!r}", why=f"{key} has no value", next_step="write hang@rank=2,step=30")
        given[key] = value
    if sum(key in given for key in _WHEN) != 1:
        why = "it needs one of step, collective and phase"
        raise BadValue(f"the fault {text!r}", why=why, next_step=f"write {kind}@rank=2,step=30")
    try:
        return Fault(
            kind=kind,
            ranks=None if given.get("rank", "all") == "all" else tuple(int(rank) for rank in given["rank"].split("|")),
            step=int(given["step"]) if "step" in given else None,
            collective=int(given["collective"]) if "collective" in given else None,
            phase=given.get("phase"),
            visit=int(given.get("visit", "1")),
            generation=None if given.get("generation") == "all" else int(given.get("generation", "0")),
            seconds=float(given.get("seconds", "1")),
            code=int(given.get("code", "1")),
        )
    except ValueError as error:
        raise BadValue(f"the fault {text!r}", why=str(error), next_step="write hang@rank=2,step=30") from error


def arm(text: str, box: BoxWriter, *, rank: int, generation: int) -> None:
    """Make ready the faults of ``text`` that concern this rank and generation."""
    from holdfast.runtime import recorder

    mine = [
        fault
        for fault in parse(text)
        if (fault.ranks is None or rank in fault.ranks) and fault.generation in (None, generation)
    ]
    if not mine:
        return
    chaos = _Chaos(box, mine)
    recorder.step_listeners.append(chaos.at_step)
    recorder.phase_listeners.append(chaos.at_phase)
    if any(fault.collective is not None or fault.kind in _ON_COLLECTIVE for fault in mine):
        from holdfast.runtime.faulty_operators import register

        register(chaos.at_collective)
    chaos.at_phase(START)


class _Chaos:
    """Decides at each step and collective whether a fault is due."""

    def __init__(self, box: BoxWriter, faults: list[Fault]) -> None:
        self._box = box
        self._waiting = faults
        self._next: str | None = None
        self._slow_s = 0.0
        self._collectives = 0
        self._visits: Counter[str] = Counter()

    def at_step(self, number: int) -> None:
        """Called when step ``number`` is reached."""
        if self._slow_s:
            time.sleep(self._slow_s)
        for fault in [fault for fault in self._waiting if fault.step is not None and number >= fault.step]:
            self._strike(fault)

    def at_phase(self, name: str) -> None:
        """Called when a phase is entered."""
        self._visits[name] += 1
        for fault in [fault for fault in self._waiting if fault.phase == name and self._visits[name] >= fault.visit]:
            self._strike(fault)

    def at_collective(self) -> str | None:
        """Called in front of every collective: what is to be done to it, if anything."""
        self._collectives += 1
        for fault in [fault for fault in self._waiting if fault.collective == self._collectives]:
            self._strike(fault)
        due, self._next = self._next, None
        return due

    def _strike(self, fault: Fault) -> None:
        self._waiting.remove(fault)
        self._box.note(Note.WORD, f"injected: {fault.kind}")
        if fault.kind in _ON_COLLECTIVE:
            self._next = fault.kind
        elif fault.kind == "slow":
            self._slow_s = fault.seconds
        elif fault.kind == "exit":
            os._exit(fault.code)
        elif fault.kind in _LASTING:
            _LASTING[fault.kind](fault.seconds)
        else:
            _ACTIONS[fault.kind]()


def hang() -> None:
    """Sleep for ever."""
    while True:
        time.sleep(3600)


def _raise() -> None:
    raise RuntimeError("injected exception")


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _leave() -> None:
    sys.exit(0)


def _take_all_memory() -> None:
    """Run into a limit of this process's own, so that nobody else's memory is touched."""
    import resource

    import torch

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    torch.empty(2 * _ROOM_BYTES, dtype=torch.uint8)


def _run_out_on_device() -> None:
    import torch

    message = "CUDA out of memory. Tried to allocate 2.00 GiB. (injected: no device was asked)"
    raise torch.OutOfMemoryError(message)


def _fill_memory() -> None:
    """Take memory in pieces, each of them touched, so that the kernel has to find it or to kill."""
    taken = [b"\1" * _ROOM_BYTES for _ in range(_FILL_BYTES // _ROOM_BYTES)]
    message = f"{len(taken) * _ROOM_BYTES >> 20} MiB were taken and nobody was killed: there is no limit on memory here"
    raise RuntimeError(message)


def _kill_loader() -> None:
    """The first child that is none of multiprocessing's own servants, once there is one."""
    import multiprocessing

    for child in multiprocessing.active_children():
        if child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
            return
    raise RuntimeError("the rank has no data-loader process: num_workers is 0, or none was started yet")


def _slow_disk(seconds: float) -> None:
    real = os.fsync

    def slow(fd: Any) -> None:
        time.sleep(seconds)
        real(fd)

    os.fsync = slow


def _jump(seconds: float) -> None:
    real = time.time
    time.time = lambda: real() + seconds


_LASTING: dict[str, Callable[[float], None]] = {"slow-disk": _slow_disk, "clock-jump": _jump}
_ACTIONS: dict[str, Callable[[], None]] = {
    "hang": hang,
    "sigkill": _kill,
    "sigstop": _stop,
    "exception": _raise,
    "early-end": _leave,
    "out-of-memory": _take_all_memory,
    "device-oom": _run_out_on_device,
    "fill-memory": _fill_memory,
    "kill-loader": _kill_loader,
}
