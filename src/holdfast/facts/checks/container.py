"""Whether this is a container, and what it keeps from a job: tracing, locked memory, the host's network."""

from __future__ import annotations

import os

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.host import container_of
from holdfast.findings import Fact, Unknown

_STATUS, _PTRACE = "/proc/self/status", "/proc/sys/kernel/yama/ptrace_scope"
#: Bits of <linux/capability.h> that a job or holdfast has a use for.
CAPABILITIES = {"net_admin": 12, "ipc_lock": 14, "sys_ptrace": 19, "sys_admin": 21, "sys_nice": 23}
_FILTERS = {0: "none", 1: "strict", 2: "a filter"}


class Container(Seen, frozen=True, kw_only=True):
    """``name`` is empty where nothing shows one. ``ptrace_scope`` is Yama's, 0 where there is none.

    ``capabilities`` are those of CAPABILITIES that this process has; ``first`` is the program with pid 1.
    """

    name: str
    sign: str
    capabilities: tuple[str, ...] | Unknown
    seccomp: str = ""
    ptrace_scope: int = 0
    first: str = ""
    root: bool | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        told = [fact("container", self.name or "none that shows", self.sign)]
        caps = self.capabilities if isinstance(self.capabilities, Unknown) else ", ".join(self.capabilities) or "none"
        told += [fact("capabilities", caps, _STATUS), fact("ptrace_scope", self.ptrace_scope, _PTRACE)]
        told += [fact("system calls filtered by", self.seccomp, _STATUS)] if self.seccomp else []
        return (*told, *((fact("pid 1", self.first, "/proc/1/stat"),) if self.first else ()))


def look(place: Place) -> Container:
    """Read /proc and the marks that containers leave."""
    name, sign = container_of(place.path("/proc"), place.path("/"))
    known = proc.fields(place.path(_STATUS))
    scope, first = proc.number(place.path(_PTRACE)), proc.stat(1, place.path("/proc"))
    filtered = "" if isinstance(known, Unknown) else known.get("Seccomp", "")
    return Container(
        name=name,
        sign=sign,
        capabilities=known if isinstance(known, Unknown) else _capabilities(known.get("CapEff", "")),
        seccomp=_FILTERS.get(int(filtered), filtered) if filtered.isdigit() else "",
        ptrace_scope=scope if isinstance(scope, int) else 0,
        first="" if isinstance(first, Unknown) else first.name,
        root=os.geteuid() == 0 if place.root == "/" else None,
    )


def _capabilities(digits: str) -> tuple[str, ...] | Unknown:
    try:
        bits = int(digits, 16)
    except ValueError:
        return Unknown(f"{_STATUS} has no CapEff")
    return tuple(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)
