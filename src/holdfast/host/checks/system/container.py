"""Whether this is a container, and its restrictions: tracing, locked memory, the host's network."""

from __future__ import annotations

import os

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.host_summary import container_of
from holdfast.host.processes import proc

_STATUS, _PTRACE = "/proc/self/status", "/proc/sys/kernel/yama/ptrace_scope"
#: Bits of <linux/capability.h> that a job or holdfast uses.
CAPABILITIES = {"net_admin": 12, "ipc_lock": 14, "sys_ptrace": 19, "sys_admin": 21, "sys_nice": 23}
_FILTERS = {0: "none", 1: "strict", 2: "filter"}


class ContainerResult(CheckResult, frozen=True, kw_only=True):
    """``name`` is empty where no container was detected, ``sign`` the evidence for it.

    ``ptrace_scope`` is Yama's setting, 0 without Yama. ``capabilities`` are those of CAPABILITIES
    that this process has; ``first`` is the program with pid 1.
    """

    name: str
    sign: str
    capabilities: tuple[str, ...] | Unknown
    seccomp: str = ""
    ptrace_scope: int = 0
    first: str = ""
    root: bool | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        facts = [check_fact("container", self.name or "none detected", self.sign)]
        caps = (
            self.capabilities
            if isinstance(self.capabilities, Unknown)
            else ", ".join(self.capabilities) or "none"
        )
        facts += [
            check_fact("capabilities", caps, _STATUS),
            check_fact("ptrace_scope", self.ptrace_scope, _PTRACE),
        ]
        facts += [check_fact("seccomp", self.seccomp, _STATUS)] if self.seccomp else []
        return (*facts, *((check_fact("pid 1", self.first, "/proc/1/stat"),) if self.first else ()))


def inspect(context: CheckContext) -> ContainerResult:
    """Read /proc and the files that container runtimes create."""
    name, sign = container_of(context.path("/proc"), context.path("/"))
    known = proc.read_fields(context.path(_STATUS))
    scope, first = proc.read_number(context.path(_PTRACE)), proc.read_stat(1, context.path("/proc"))
    filtered = "" if isinstance(known, Unknown) else known.get("Seccomp", "")
    return ContainerResult(
        name=name,
        sign=sign,
        capabilities=known
        if isinstance(known, Unknown)
        else _capabilities(known.get("CapEff", "")),
        seccomp=_FILTERS.get(int(filtered), filtered) if filtered.isdigit() else "",
        ptrace_scope=scope if isinstance(scope, int) else 0,
        first="" if isinstance(first, Unknown) else first.name,
        root=os.geteuid() == 0 if context.root == "/" else None,
    )


def _capabilities(digits: str) -> tuple[str, ...] | Unknown:
    try:
        bits = int(digits, 16)
    except ValueError:
        return Unknown(f"{_STATUS} has no CapEff")
    return tuple(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)
