"""Monitors this host during a job: repeats some checks in a thread of the watcher.

A check that blocks delays only the next round; the watcher reads the last complete round. Such a
check may leave a process that cannot be killed, so it is repeated with exponential backoff.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.findings import Finding, Level, Unknown, Verdict
from holdfast.core.live_state import GpuReading, NodeReading
from holdfast.host.checks import CheckContext, CheckResult, select_checks
from holdfast.host.checks.devices.gpu_health import GpuHealthResult
from holdfast.host.checks.runner import run_checks
from holdfast.host.checks.system.memory import MemoryResult
from holdfast.host.gpus import HostGpu
from holdfast.watcher.rules import host_health

#: The first round runs after the workers' imports.
FIRST_ROUND_S = 5.0
#: Minimum time between two reports of the same finding, and the longest backoff of a check.
REPEAT_S = 3600.0
MAX_FINDINGS_IN_VERDICT = 8


class HostHealthMonitor:
    """Runs checks every ``every_s`` seconds after :meth:`start`; 0 disables it."""

    def __init__(
        self, context: CheckContext, every_s: float, names: Sequence[str] = host_health.WATCHED
    ) -> None:
        self._context = context
        self._every_s = every_s
        self._checks = select_checks(tuple(names))
        self._first: dict[str, CheckResult] = {}
        self._last: dict[str, CheckResult] = {}
        self._findings: tuple[Finding, ...] = ()
        self._blocked_until: dict[str, tuple[float, float]] = {}  # monotonic s, current backoff
        self._reported_at: dict[tuple[str, object], float] = {}
        self._ended = threading.Event()
        self._is_checking = False
        self._thread = threading.Thread(target=self._run, name="holdfast-health", daemon=True)

    def start(self) -> None:
        """Start the thread; does nothing the second time."""
        if self._every_s > 0 and self._thread.ident is None:
            self._thread.start()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the last round, errors first."""
        return self._findings

    @property
    def reading(self) -> NodeReading:
        """Memory and GPUs of this host in the last round."""
        memory, health = self._last.get("memory"), self._last.get("gpu-health")
        answer = health.answer if isinstance(health, GpuHealthResult) else None
        measured = memory if isinstance(memory, MemoryResult) else None
        return NodeReading(
            host=os.uname().nodename,
            memory_bytes=measured.limit_bytes if measured else None,
            memory_available_bytes=measured.available_bytes if measured else None,
            gpus=tuple(_gpu_reading(gpu) for gpu in answer.gpus) if answer else (),
        )

    def new_sentences(self) -> list[str]:
        """Return a sentence for each finding that was not reported within the last hour."""
        now, sentences = time.monotonic(), []
        for finding in self._findings:
            key = (finding.cause, finding.subject)
            if now - self._reported_at.get(key, -REPEAT_S) >= REPEAT_S:
                self._reported_at[key] = now
                sentences.append(_sentence(finding))
        return sentences

    def add_to(self, verdict: Verdict, others: Sequence[Finding] = ()) -> Verdict:
        """Add the findings of all hosts as suspects, unless the verdict has their cause already."""
        known = {
            finding.cause
            for finding in (verdict.root, *verdict.consequences, *verdict.suspects)
            if finding is not None
        }
        added = [finding for finding in (*self._findings, *others) if finding.cause not in known][
            :MAX_FINDINGS_IN_VERDICT
        ]
        return replace(verdict, suspects=(*verdict.suspects, *added)) if added else verdict

    def close(self) -> bool:
        """Stop; return False if a round is in progress, which may block and must not delay exit."""
        self._ended.set()
        return not self._is_checking

    def _run(self) -> None:
        pause_s = min(FIRST_ROUND_S, self._every_s)
        while not self._ended.wait(pause_s):
            self._is_checking = True
            self.check()
            self._is_checking = False
            pause_s = self._every_s

    def check(self) -> None:
        """Run one round, and judge the last result of each check."""
        begun = time.monotonic()
        due = [
            check
            for check in self._checks
            if self._blocked_until.get(check.name, (0.0, 0.0))[0] <= begun
        ]
        for name, outcome in run_checks(self._context, due).items():
            result = outcome.result
            if isinstance(result, CheckResult):
                self._last[name] = result
                self._first.setdefault(name, result)
            if isinstance(result, Unknown) or (
                isinstance(result, GpuHealthResult) and result.stuck
            ):
                backoff_s = self._blocked_until.get(name, (0.0, 0.0))[1]
                backoff_s = min(2 * max(backoff_s, self._every_s), REPEAT_S)
                self._blocked_until[name] = (time.monotonic() + backoff_s, backoff_s)
            else:
                self._blocked_until.pop(name, None)
        self._findings = host_health.judge(
            self._last, self._first, self._context, os.uname().nodename, time.time()
        )


def _gpu_reading(gpu: HostGpu) -> GpuReading:
    numbers = (gpu.temperature_c, gpu.memory_used_bytes, gpu.memory_bytes)
    temperature, used, total = (None if isinstance(each, Unknown) else each for each in numbers)
    pids = (process.pid for process in gpu.processes) if isinstance(gpu.processes, tuple) else ()
    throttled = gpu.throttled if isinstance(gpu.throttled, tuple) else ()
    return GpuReading(gpu.index, gpu.name, temperature, used, total, throttled, tuple(pids))


def _sentence(finding: Finding) -> str:
    level = "" if finding.level is Level.WARNING else f" ({finding.level})"
    return (
        f"health of {finding.subject.host}{level}: {finding.message} "
        f"({finding.code} {finding.cause})"
    )
