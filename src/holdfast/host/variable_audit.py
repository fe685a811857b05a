"""Audits variables of this process, a recorded job or files (``holdfast env``, ``run``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core.exit_status import OK, USAGE, status_of_findings
from holdfast.core.findings import Fact, Finding, Level
from holdfast.core.settings import current_environment
from holdfast.host import variable_sources
from holdfast.host.environment import REDACTED, redact_value
from holdfast.host.variable_rules import audit, host_differences
from holdfast.host.variable_rules.context import AuditContext
from holdfast.host.variable_sources import VariableSetting
from holdfast.host.versions import nccl_and_torch

INTERFACES = "/sys/class/net"
RDMA_DEVICES = "/sys/class/infiniband"


class VariableAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The audited variables, the number of files read, the findings, and what could not be read."""

    settings: tuple[VariableSetting, ...]
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()
    files: int = 0
    #: Scanned paths in which nothing sets a variable or starts a job.
    without_launch: tuple[str, ...] = ()

    def shown(self) -> tuple[VariableSetting, ...]:
        """Return the variables with secrets redacted from their values."""
        return tuple(
            setting
            if setting.value is None
            else replace(setting, value=redact_value(setting.name, setting.value))
            for setting in self.settings
        )

    @property
    def exit_status(self) -> int:
        """Return 1 if there is an error, 2 if a scanned path has no launch, else 0."""
        return status_of_findings(self.findings) or (USAGE if self.without_launch else OK)


def audit_environment(environ: Mapping[str, str] | None = None, root: str = "/") -> VariableAudit:
    """Audit the variables of this process, and those of NCCL's files, on this host."""
    variables = current_environment() if environ is None else environ
    from_files, unseen = variable_sources.from_nccl_files(variables, root)
    settings = (*variable_sources.from_environment(variables), *from_files)
    nccl, torch = nccl_and_torch()
    interfaces = _names(root, INTERFACES)
    context = AuditContext(
        nccl=nccl,
        torch=torch,
        interfaces=interfaces or None,
        infiniband=bool(_names(root, RDMA_DEVICES)),
    )
    return VariableAudit(settings=settings, findings=audit(settings, context), unseen=unseen)


def audit_recorded(facts: Sequence[Fact]) -> tuple[Finding, ...]:
    """Audit the variables of a finished job, recorded as facts in its trace files.

    Return only errors.
    """
    by_host: dict[str, dict[str, str]] = {}
    for fact in facts:
        name, sign, value = fact.text.partition("=")
        if sign and fact.origin == f"environment variable {name}" and value != REDACTED:
            by_host.setdefault(fact.host or "", {})[name] = value
    findings = [
        replace(
            finding, subject=replace(finding.subject, host=finding.subject.host or host or None)
        )
        for host, environ in by_host.items()
        for finding in audit(variable_sources.from_environment(environ), AuditContext())
    ]
    return tuple(
        finding
        for finding in (*findings, *host_differences(by_host))
        if finding.level is Level.ERROR
    )


def audit_files(paths: Sequence[Path]) -> VariableAudit:
    """Audit variables in launch scripts, images, manifests and programs, for any release.

    Raises:
        MissingFile: one of ``paths`` does not exist.
    """
    # not at the top: imports yaml
    from holdfast.host.launch_files.scanning import scan_folder  # noqa: PLC0415

    scanned = scan_folder(paths)
    return VariableAudit(
        settings=scanned.settings,
        findings=audit(scanned.settings, AuditContext()),
        unseen=scanned.unseen,
        files=scanned.files,
        without_launch=scanned.without_launch,
    )


def _names(root: str, folder: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in Path(root, folder.lstrip("/")).iterdir()))
    except OSError:
        return ()
