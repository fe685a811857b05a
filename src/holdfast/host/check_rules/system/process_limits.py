"""Judges whether the workers can start their processes and threads."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.environment.process_limit import PROCESS_LIMIT
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.process_limits import ProcessLimitsResult

#: A rank under torch 2.13 has about 20 threads on a CPU; with a loader, NCCL and numeric libraries
#: about 100.
_MIN_PER_WORKER, _USUAL_PER_WORKER = 20, 200


def judge(result: ProcessLimitsResult, context: CheckContext) -> Iterator[Finding]:
    """Report an error if the workers alone exceed the limit, a warning if they may."""
    workers, remaining = context.workers or 1, result.remaining
    if remaining is None or remaining >= workers * _USUAL_PER_WORKER:
        return
    is_cgroup = (
        result.limit is not None
        and result.used is not None
        and remaining == result.limit - result.used
    )
    yield make_finding(
        PROCESS_LIMIT,
        f"{'the cgroup' if is_cgroup else 'the kernel'} allows {max(0, remaining)} more processes "
        f"and "
        f"threads; {workers} worker{'s' * (workers > 1)} may need {workers * _USUAL_PER_WORKER}",
        level=Level.ERROR if remaining < workers * _MIN_PER_WORKER else Level.WARNING,
        evidence=result.facts(),
        confidence=0.7,
    )
