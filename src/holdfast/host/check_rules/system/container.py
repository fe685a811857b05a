"""Judges container restrictions and host hardening that affect a job."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.environment.tracing_refused import TRACING_REFUSED
from holdfast.core.findings import Finding, Level, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.container import ContainerResult


def judge(result: ContainerResult, _context: CheckContext) -> Iterator[Finding]:
    """Blocked ptrace is a note: the job itself runs, only its native stacks cannot be sampled."""
    if isinstance(result.capabilities, Unknown):
        return
    may_trace = "sys_ptrace" in result.capabilities
    if result.ptrace_scope == 3 or (result.ptrace_scope and not may_trace):
        where = f"in this container ({result.name})" if result.name else "on this host"
        missing = "" if may_trace else ", no CAP_SYS_PTRACE"
        yield make_finding(
            TRACING_REFUSED,
            f"ptrace is blocked {where} (ptrace_scope {result.ptrace_scope}{missing}): native "
            "stacks of a hung job cannot be sampled",
            level=Level.NOTE,
            evidence=result.facts(),
            confidence=0.7,
        )
