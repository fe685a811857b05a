"""Judges valid settings that cost speed, hide errors, or were left on after debugging."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast.causes.environment.variable_harmful import VARIABLE_HARMFUL
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.core.findings import Finding, Level
from holdfast.host.variable_rules.context import AuditContext, variable_finding
from holdfast.host.variable_sources import VariableSetting


class _HarmfulValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variable, its harmful values in lower case (empty: any), and their effect.

    ``forced``: instead, a list that forces NCCL's choice: without ``^``, and for all functions.
    """

    name: str
    effect: str
    values: tuple[str, ...] = ()
    level: Level = Level.WARNING
    forced: bool = False

    def matches(self, value: str) -> bool:
        """Return whether the value is harmful."""
        if self.forced:
            return not value.startswith("^") and ":" not in value
        return not self.values or value.casefold() in self.values


_HARMFUL_VALUES = msgspec.json.decode(
    Path(__file__).with_name("harmful.json").read_bytes(), type=tuple[_HarmfulValue, ...]
)


def judge(
    setting: VariableSetting, others: Mapping[str, VariableSetting], context: AuditContext
) -> Iterator[Finding]:
    """Report a harmful value.

    ``others``, the variables of the same process, may make it harmless.
    """
    value = (setting.value or "").strip()
    for harmful in _HARMFUL_VALUES:
        if harmful.name == setting.name and value and harmful.matches(value):
            level = (
                Level.NOTE
                if harmful.name == "NCCL_IB_DISABLE" and context.infiniband is False
                else harmful.level
            )
            yield variable_finding(
                VARIABLE_HARMFUL,
                f"{setting}: {harmful.effect}",
                setting,
                level=level,
                command=f"unset {setting.name}",
            )
    yield from _judge_log_file(setting, others)
    yield from _judge_interface(setting)


def _judge_log_file(
    setting: VariableSetting, others: Mapping[str, VariableSetting]
) -> Iterator[Finding]:
    value = setting.value or ""
    if (
        setting.name == "NCCL_DEBUG_FILE"
        and value
        and not value.startswith("/dev/")
        and "%p" not in value
    ):
        level = (others["NCCL_DEBUG"].value if "NCCL_DEBUG" in others else "") or ""
        if level.upper() not in ("", "VERSION"):
            yield variable_finding(
                VARIABLE_HARMFUL,
                f"{setting} has no %p (and %h), so that all ranks overwrite the same file",
                setting,
                command=f"export NCCL_DEBUG_FILE={shlex.quote(value)}.%h.%p",
            )


def _judge_interface(setting: VariableSetting) -> Iterator[Finding]:
    value = setting.value or ""
    names = [] if value.startswith("^") else value.lstrip("=").split(",")
    if setting.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and set(names) & {
        "lo",
        "docker0",
        "virbr0",
    }:
        yield variable_finding(
            NETWORK_INTERFACE_WRONG,
            f"{setting} is an interface that no other host can reach; it only "
            f"suits single-host jobs",
            setting,
            level=Level.WARNING,
            confidence=0.8,
        )
