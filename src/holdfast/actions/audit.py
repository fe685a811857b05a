"""Look at the variables of this process, or of files, and judge them, for ``holdfast env`` and ``holdfast run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast import settings
from holdfast.facts import variables
from holdfast.facts.environment import LEFT_OUT, without_secret
from holdfast.facts.variables import Given
from holdfast.facts.versions import nccl_and_torch
from holdfast.findings import Fact, Finding, Level
from holdfast.rules.environment import audit, differences
from holdfast.rules.environment.scene import Scene

INTERFACES = "/sys/class/net"
RDMA_DEVICES = "/sys/class/infiniband"


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at (variables, and files where they were), what is wrong, and what could not be seen."""

    given: tuple[Given, ...]
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()
    files: int = 0

    def shown(self) -> tuple[Given, ...]:
        """The variables without what is secret in their values."""
        return tuple(
            each if each.value is None else replace(each, value=without_secret(each.name, each.value))
            for each in self.given
        )

    @property
    def exit_status(self) -> int:
        """1 where an error was found."""
        return int(any(claim.level is Level.ERROR for claim in self.findings))


def audit_environment(environ: Mapping[str, str] | None = None, root: str = "/") -> Audited:
    """The variables of this process, and those that NCCL takes from its files, on this host."""
    variables_here = settings.environment() if environ is None else environ
    from_files, unseen = variables.in_nccl_files(variables_here, root)
    given = (*variables.in_environment(variables_here), *from_files)
    nccl, torch = nccl_and_torch()
    interfaces = _names(root, INTERFACES)
    scene = Scene(nccl=nccl, torch=torch, interfaces=interfaces or None, infiniband=bool(_names(root, RDMA_DEVICES)))
    return Audited(given=given, findings=audit(given, scene), unseen=unseen)


def audit_recorded(facts: Sequence[Fact]) -> tuple[Finding, ...]:
    """What was wrong with the variables of a job that is over, as the facts in its boxes have them: errors alone."""
    by_host: dict[str, dict[str, str]] = {}
    for fact in facts:
        name, told, value = fact.text.partition("=")
        if told and fact.origin == f"environment variable {name}" and value != LEFT_OUT:
            by_host.setdefault(fact.host or "", {})[name] = value
    found = [
        replace(claim, subject=replace(claim.subject, host=claim.subject.host or host or None))
        for host, environ in by_host.items()
        for claim in audit(variables.in_environment(environ), Scene())
    ]
    return tuple(claim for claim in (*found, *differences(by_host)) if claim.level is Level.ERROR)


def audit_files(paths: Sequence[Path]) -> Audited:
    """What launch scripts, images, manifests and programs at ``paths`` set; for no host, and no release in particular.

    Raises:
        MissingFile: one of ``paths`` is not there.
    """
    from holdfast.facts.launch_files.scanning import scan  # noqa: PLC0415 - it brings a parser that nothing else needs

    seen = scan(paths)
    return Audited(given=seen.given, findings=audit(seen.given, Scene()), unseen=seen.unseen, files=seen.files)


def _names(root: str, folder: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in Path(root, folder.lstrip("/")).iterdir()))
    except OSError:
        return ()
