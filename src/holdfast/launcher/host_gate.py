"""The health gate before each start: exclude a host on which the job is certain to fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Thread

import msgspec

from holdfast.core.findings import Finding
from holdfast.host.checks import CheckContext, CheckResult, select_checks
from holdfast.host.checks.runner import run_checks
from holdfast.launcher import host_gate_rules

#: Time limit of all checks together; a late check is unknown and does not exclude the host.
TIMEOUT_S = 4.0
#: A reason for exclusion must hold twice, this many seconds apart: processes that exit release
#: memory and devices.
RECHECK_PAUSE_S = 1.0


class GateResult(msgspec.Struct, frozen=True):
    """Why the host is excluded (empty: it is not), and the duration of the checks in seconds."""

    refused: tuple[Finding, ...]
    elapsed_s: float


class HostGate:
    """Compares the host with its state when the job began."""

    def __init__(self, context: CheckContext, pause: Callable[[float], None] = time.sleep) -> None:
        self._context = msgspec.structs.replace(context, within_s=TIMEOUT_S)
        self._pause = pause
        self._baseline: dict[str, CheckResult] = {}
        self._early: Thread | None = None
        self._findings: tuple[Finding, ...] = ()
        self._host = os.uname().nodename

    def begin(self) -> None:
        """Start the checks while workers are being terminated; :meth:`check` uses the results."""
        self._early = Thread(target=self._run_checks, name="holdfast gate", daemon=True)
        self._early.start()

    def check(self) -> GateResult:
        """Run the checks, twice if the host would be excluded.

        The first results are the baseline of later ones.
        """
        started = time.monotonic()
        early, self._early = self._early, None
        if early is None:
            self._run_checks()
        else:
            early.join(TIMEOUT_S + RECHECK_PAUSE_S)
        refused = self._findings
        if refused:
            self._pause(RECHECK_PAUSE_S)
            self._run_checks()
            still = {(each.cause, each.subject) for each in self._findings}
            refused = tuple(each for each in refused if (each.cause, each.subject) in still)
        return GateResult(refused, round(time.monotonic() - started, 3))

    def _run_checks(self) -> None:
        self._findings = ()
        runs = run_checks(self._context, select_checks(host_gate_rules.CHECK_NAMES))
        results = {
            name: run.result for name, run in runs.items() if isinstance(run.result, CheckResult)
        }
        baseline = dict(self._baseline)
        for name, result in results.items():
            self._baseline.setdefault(name, result)
        self._findings = host_gate_rules.unfit_reasons(results, baseline, self._context, self._host)
