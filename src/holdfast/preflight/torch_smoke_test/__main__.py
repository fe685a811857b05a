"""The ranks of one host: import torch once, and fork for each step and rank, with a hard limit."""

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

from holdfast.preflight.torch_smoke_test import SmokeTestFailure, SmokeTestPlan, SmokeTestStage
from holdfast.recorder.bootstrap import PR_SET_PDEATHSIG

#: How long rank 0 keeps serving the store for ranks that still read the failures.
_GOODBYE_S = 2.0
_NOT_SERVED = -1


def main() -> None:
    """Import torch, read the plan, and run the steps until one fails."""
    _die_with(os.getppid())
    began = time.monotonic()
    import torch  # noqa: PLC0415 - its duration is a stage

    from holdfast.preflight.torch_smoke_test import stages  # noqa: PLC0415 - imports torch

    took_s = round(time.monotonic() - began, 3)
    _emit(
        SmokeTestStage(
            name="import", processes=0, took_s=took_s, detail=f"torch {torch.__version__}"
        )
    )
    line = sys.stdin.buffer.readline()
    if line:
        _run(msgspec.json.decode(line, type=SmokeTestPlan), stages)


def _run(plan: SmokeTestPlan, steps: ModuleType) -> None:
    server = _serve_store(plan, steps.serve_store) if plan.rank == 0 and plan.world > 1 else None
    if server != _NOT_SERVED:
        own = [
            replace(plan, rank=plan.rank + at, device=_device(plan, at)) for at in range(plan.local)
        ]
        for processes in plan.steps:
            ranks = [each for each in own if processes == 1 or each.rank < processes]
            if not _run_step(ranks, processes, steps.run_step):
                break
    if server is not None and server != _NOT_SERVED:
        _await_exit(server, _GOODBYE_S)


def _device(plan: SmokeTestPlan, at: int) -> int | None:
    return at if plan.local > 1 else plan.device


def _run_step(plans: Sequence[SmokeTestPlan], processes: int, step: Callable[..., None]) -> bool:
    """Run a step for all participating ranks of this host; the first one reports its stages."""
    children = [
        (_fork(partial(step, each, processes, _emit if each is plans[0] else _emit_failure)), each)
        for each in plans
    ]
    until = time.monotonic() + max((_limit_s(each) for each in plans), default=0.0)
    succeeded = [_await_rank(child, each, processes, until) for child, each in children]
    return all(succeeded)


def _serve_store(plan: SmokeTestPlan, serve: Callable[..., None]) -> int:
    """Return the id of the process that serves the store; _NOT_SERVED if it cannot."""
    reader, writer = os.pipe()

    def ready() -> None:
        os.write(writer, b"+")

    child = _fork(partial(serve, plan, ready, _emit))
    os.close(writer)
    serving = os.read(reader, 1) == b"+"
    os.close(reader)
    if serving:
        return child
    _await_exit(child, 1.0)
    return _NOT_SERVED


def _fork(work: Callable[[], None]) -> int:
    """Fork a process that does the work and dies with this one; return its id."""
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
    if os.getppid() != parent:  # it ended before prctl took effect
        os._exit(1)


def _limit_s(plan: SmokeTestPlan) -> float:
    """Return the limit of a complete step in seconds."""
    return plan.limit_s * (4 + len(plan.sizes_bytes)) + 5


def _await_rank(child: int, plan: SmokeTestPlan, processes: int, until: float) -> bool:
    """Return whether this rank's step succeeded; kill and report one that does not end."""
    status = _await_exit(child, until - time.monotonic())
    if status is None or os.WIFSIGNALED(status):
        why = (
            f"killed after {_limit_s(plan):g} s"
            if status is None
            else f"died of signal {os.WTERMSIG(status)}"
        )
        _emit(
            SmokeTestFailure(
                rank=plan.rank, host=os.uname().nodename, stage="step", processes=processes, why=why
            )
        )
    return status == 0


def _await_exit(child: int, limit_s: float) -> int | None:
    """Return the exit status; None if the process had to be killed."""
    until = time.monotonic() + limit_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _emit_failure(entry: SmokeTestStage | SmokeTestFailure) -> None:
    if isinstance(entry, SmokeTestFailure):
        _emit(entry)


def _emit(entry: SmokeTestStage | SmokeTestFailure) -> None:
    os.write(1, msgspec.json.encode(entry) + b"\n")


if __name__ == "__main__":
    main()
