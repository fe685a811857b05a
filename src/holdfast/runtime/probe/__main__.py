"""The ranks of one host: imports torch once, and makes a fork of itself a step and rank, with a hard limit each."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import msgspec
from msgspec.structs import replace

from holdfast.runtime.bootstrap import PR_SET_PDEATHSIG
from holdfast.runtime.probe import Failure, Plan, Stage

#: How long rank 0 keeps the store for those that still hear why it failed.
_LAST_S = 2.0
_NOT_KEPT = -1


def main() -> None:
    """Import torch, hear the plan, and go through the steps until one fails."""
    _die_with(os.getppid())
    began = time.monotonic()
    import torch  # noqa: PLC0415 - what it costs is a stage of its own

    from holdfast.runtime.probe import steps  # noqa: PLC0415 - it imports torch

    took_s = round(time.monotonic() - began, 3)
    _say(Stage(name="import", processes=0, took_s=took_s, detail=f"torch {torch.__version__}"))
    line = sys.stdin.buffer.readline()
    if line:
        _go(msgspec.json.decode(line, type=Plan), steps)


def _go(plan: Plan, steps: ModuleType) -> None:
    keeper = _keep(plan, steps.keep) if plan.rank == 0 and plan.world > 1 else None
    if keeper != _NOT_KEPT:
        own = [replace(plan, rank=plan.rank + at, device=_device(plan, at)) for at in range(plan.local)]
        for processes in plan.steps:
            taking = [each for each in own if processes == 1 or each.rank < processes]
            if not _step(taking, processes, steps.step):
                break
    if keeper is not None and keeper != _NOT_KEPT:
        _ended(keeper, _LAST_S)


def _device(plan: Plan, at: int) -> int | None:
    return at if plan.local > 1 else plan.device


def _step(plans: Sequence[Plan], processes: int, step: Callable[..., None]) -> bool:
    """Did it end well for all ranks of this host that take part? The first of them tells of its stages."""
    children = [
        (_fork(partial(step, each, processes, _say if each is plans[0] else _say_failure)), each) for each in plans
    ]
    until = time.monotonic() + max((_limit_s(each) for each in plans), default=0.0)
    ended_well = [_in_time(child, each, processes, until) for child, each in children]  # all of them are waited for
    return all(ended_well)


def _keep(plan: Plan, keep: Callable[..., None]) -> int:
    """The id of the process that keeps the store, once it does; _NOT_KEPT where it cannot."""
    reader, writer = os.pipe()

    def ready() -> None:
        os.write(writer, b"+")

    child = _fork(partial(keep, plan, ready, _say))
    os.close(writer)
    kept = os.read(reader, 1) == b"+"
    os.close(reader)
    if kept:
        return child
    _ended(child, 1.0)
    return _NOT_KEPT


def _fork(work: Callable[[], None]) -> int:
    """The id of a process that does it, and dies with this one."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _die_with(parent)
        work()
        status = 0
    finally:
        os._exit(status)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)


def _limit_s(plan: Plan) -> float:
    """Of a whole step."""
    return plan.limit_s * (4 + len(plan.sizes_bytes)) + 5


def _in_time(child: int, plan: Plan, processes: int, until: float) -> bool:
    """Did this rank's step end well? One that does not end at all is killed, and said to be."""
    status = _ended(child, until - time.monotonic())
    if status is None or os.WIFSIGNALED(status):
        why = f"killed after {_limit_s(plan):g} s" if status is None else f"died of signal {os.WTERMSIG(status)}"
        _say(Failure(rank=plan.rank, host=os.uname().nodename, stage="step", processes=processes, why=why))
    return status == 0


def _ended(child: int, limit_s: float) -> int | None:
    """How it ended; None where it had to be killed."""
    until = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _say_failure(entry: Stage | Failure) -> None:
    if isinstance(entry, Failure):
        _say(entry)


def _say(entry: Stage | Failure) -> None:
    os.write(1, msgspec.json.encode(entry) + b"\n")


if __name__ == "__main__":
    main()
