"""Context of the variable rules, and the construction of their findings."""

from __future__ import annotations

import msgspec

from holdfast.causes import by_name
from holdfast.causes.environment.variable_value_unusable import VARIABLE_VALUE_UNUSABLE
from holdfast.causes.remedies import disruptive
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.host.environment import redact_value
from holdfast.host.variable_sources import ENVIRONMENT, VariableSetting

_MAX_SHOWN = 120


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


def format_setting(setting: VariableSetting) -> str:
    """Return ``NAME=value`` redacted and shortened for a message."""
    return (
        setting.name
        if setting.value is None
        else f"{setting.name}={truncate(redact_value(setting.name, setting.value))}"
    )


def truncate(text: str) -> str:
    """Shorten a text of the user's for a message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def variable_finding(
    cause: str,
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
    if cause == VARIABLE_VALUE_UNUSABLE.name and not command:
        command = f"holdfast explain {setting.name}"
    remedy = disruptive(text, command or None)
    return make_finding(
        by_name(cause),
        message,
        level=level,
        subject=Subject(file=file, line=setting.line),
        evidence=tuple(
            Fact(text=format_setting(other), origin=other.location) for other in (setting, *others)
        ),
        remedies=(remedy,),
        confidence=confidence,
    )
