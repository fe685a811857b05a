"""Context of the variable rules, and the construction of their findings."""

from __future__ import annotations

import msgspec

from holdfast.causes.environment.variable_value_unusable import VARIABLE_VALUE_UNUSABLE
from holdfast.causes.remedies import disruptive
from holdfast.core.findings import Cause, Fact, Finding, Level, Subject, make_finding
from holdfast.host.variable_sources import ENVIRONMENT, VariableSetting


class AuditContext(msgspec.Struct, frozen=True, kw_only=True):
    """Installed versions ("" if not known), and this host's interfaces (None: not inspected).

    ``elastic``: torchrun or holdfast run starts the workers, or is expected to. ``infiniband``: the
    host has RDMA devices; None: not inspected.
    """

    nccl: str = ""
    torch: str = ""
    elastic: bool = True
    interfaces: tuple[str, ...] | None = None
    infiniband: bool | None = None


def variable_finding(
    cause: Cause,
    message: str,
    setting: VariableSetting,
    *others: VariableSetting,
    level: Level = Level.WARNING,
    command: str = "",
    advice: str = "",
    confidence: float = 0.9,
) -> Finding:
    """Return a finding about ``setting`` with all variables as evidence.

    ``advice`` replaces the default remedy.
    """
    file = None if setting.origin == ENVIRONMENT else setting.origin
    text = advice or (
        f"Change it in {setting.location}." if file else "Change it where the job starts."
    )
    if cause is VARIABLE_VALUE_UNUSABLE and not command:
        command = f"holdfast explain {setting.name}"
    remedy = disruptive(text, command or None)
    return make_finding(
        cause,
        message,
        level=level,
        subject=Subject(file=file, line=setting.line),
        evidence=tuple(
            Fact(text=str(other), origin=other.location) for other in (setting, *others)
        ),
        remedies=(remedy,),
        confidence=confidence,
    )
