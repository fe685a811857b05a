"""Does the container, or the host's own hardening, keep something from a job that it needs?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.container import Container
from holdfast.findings import Finding, Level, Unknown, finding
from holdfast.rules.causes import by_name


def judge(seen: Container, _place: Place) -> Iterator[Finding]:
    """A note where stacks cannot be taken from outside: the job itself runs all the same."""
    if isinstance(seen.capabilities, Unknown):
        return
    may_trace = "sys_ptrace" in seen.capabilities
    if seen.ptrace_scope == 3 or (seen.ptrace_scope and not may_trace):
        where = f"in this container ({seen.name})" if seen.name else "on this host"
        yield finding(
            by_name("tracing-refused"),
            f"processes may not be traced {where} (ptrace_scope {seen.ptrace_scope}"
            f"{'' if may_trace else ', no CAP_SYS_PTRACE'}): of a job that hangs, stacks in native code stay unseen",
            level=Level.NOTE,
            evidence=seen.facts(),
            confidence=0.7,
        )
