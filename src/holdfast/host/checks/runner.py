"""Runs checks concurrently within one time limit; a late check is Unknown.

A call blocked in a driver or on an unreachable file server cannot be interrupted, neither by a
signal nor by a thread: checks that are known to block run in a subprocess, and whatever does not
end is abandoned.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread

import msgspec

from holdfast.core.findings import Unknown
from holdfast.host import programs
from holdfast.host.checks import CHECKS, Check, CheckContext, CheckResult

_MAX_CONCURRENT = 16


class CheckRun(msgspec.Struct, frozen=True):
    """One check that was run: its result, and how long it took."""

    check: Check
    result: CheckResult | Unknown
    elapsed_s: float


def run_checks(
    context: CheckContext,
    checks: Sequence[Check],
    on_done: Callable[[CheckRun], None] | None = None,
) -> Mapping[str, CheckRun]:
    """Run the checks and call ``on_done`` as each ends. One that fails, or is late, is Unknown."""
    started = time.monotonic()
    completed: SimpleQueue[CheckRun] = SimpleQueue()
    slots = Semaphore(_MAX_CONCURRENT)

    def run_in_slot(check: Check) -> None:
        with slots:
            completed.put(_run_one(check, context))

    for check in checks:
        Thread(
            target=run_in_slot, args=(check,), name=f"holdfast-check-{check.name}", daemon=True
        ).start()
    runs: dict[str, CheckRun] = {}
    with suppress(Empty):
        while len(runs) < len(checks):
            run = completed.get(timeout=max(started + context.within_s - time.monotonic(), 0))
            runs[run.check.name] = run
            if on_done is not None:
                on_done(run)
    late = Unknown(f"timed out after {context.within_s:g} s")
    return {
        check.name: runs.get(check.name, CheckRun(check, late, context.within_s))
        for check in checks
    }


def _run_one(check: Check, context: CheckContext) -> CheckRun:
    started = time.monotonic()
    run = _run_in_subprocess if check.in_subprocess else _run_here
    result = run(check, context)
    return CheckRun(check, result, round(time.monotonic() - started, 3))


def _run_here(check: Check, context: CheckContext) -> CheckResult | Unknown:
    try:
        return check.run(context)
    except Exception as error:  # noqa: BLE001 - one failing check must not stop the others
        return Unknown(f"{type(error).__name__}: {error}")


def _run_in_subprocess(check: Check, context: CheckContext) -> CheckResult | Unknown:
    """Run the check in a process that is killed at its limit, and abandoned if that fails."""
    limit_s = min(check.limit_s, context.within_s)
    answer = programs.run_program(
        [sys.executable, "-m", __name__, check.name], limit_s, msgspec.json.encode(context)
    )
    if isinstance(answer, Unknown):
        return Unknown(f"the check {check.name}: {answer.why}")
    try:
        return msgspec.json.decode(answer, type=check.result_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unknown(f"the check {check.name} returned an unreadable result: {error}")


def _main(name: str) -> None:
    """Run one check as a subprocess: the context on stdin, the result on stdout."""
    context = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckContext)
    result = _run_here(CHECKS[name], context)
    if isinstance(result, Unknown):
        sys.exit(result.why)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    _main(sys.argv[1])
