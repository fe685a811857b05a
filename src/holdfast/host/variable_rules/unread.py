"""Judges whether a variable is read at all by the installed releases."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from holdfast.causes.environment.nccl_timeout_ignored import NCCL_TIMEOUT_IGNORED
from holdfast.causes.environment.variable_never_read import VARIABLE_NEVER_READ
from holdfast.causes.environment.variable_not_handed_on import VARIABLE_NOT_HANDED_ON
from holdfast.causes.environment.variable_of_another_version import VARIABLE_OF_ANOTHER_VERSION
from holdfast.causes.environment.variable_renamed import VARIABLE_RENAMED
from holdfast.core.findings import Finding, Level
from holdfast.core.variable_table import (
    VariableEntry,
    VariableStatus,
    closest_name,
    family_of,
    parse_release,
    variable_entries,
)
from holdfast.host.variable_rules.context import AuditContext, variable_finding
from holdfast.host.variable_sources import VariableSetting, truncate

_GROUP = "init_process_group(timeout=...)"
#: Names that container images and clusters set for other purposes.
_HARMLESS = frozenset(
    {"NCCL_ROOT", "NCCL_INCLUDE_DIR", "NCCL_LIB_DIR", "NCCL_LIBRARY", "NCCL_INCLUDE_DIRS"}
)
#: Prefixes of variables that plugins read.
_PLUGINS = tuple(
    """
    NCCL_FASTRAK_ NCCL_GPUDIRECTTCPX_ NCCL_TCPX_ NCCL_DMABUF_ NCCL_TUNER_CONFIG_ NCCL_UCX_
    NCCL_SHIMNET_ NCCL_TOPO_ NCCL_OFI_ NCCL_PROFILER_ NCCL_INSPECTOR_
    """.split()
)


def judge_unread(
    setting: VariableSetting, others: Mapping[str, VariableSetting], context: AuditContext
) -> Iterator[Finding]:
    """Judge one variable; ``others`` are the variables of the same process by name."""
    row = variable_entries().get(setting.name)
    if row is None:
        yield from _judge_unknown_name(setting)
    elif row.status is VariableStatus.NEVER_READ:
        yield _never_read_finding(setting, row)
    elif row.status is VariableStatus.FRAMEWORK:
        yield variable_finding(
            VARIABLE_NEVER_READ,
            f"{setting} is not read by torchrun, which uses {row.replaced_by} or "
            "--node-rank; Lightning and Accelerate read it",
            setting,
            level=Level.NOTE,
        )
    elif row.status is VariableStatus.REMOVED:
        yield from _judge_removed(setting, row, context)
    elif row.status is VariableStatus.UNUSED:
        yield variable_finding(
            VARIABLE_OF_ANOTHER_VERSION,
            f"{setting} has no effect: NCCL still declares it but does not use "
            "it" + (f" since {row.removed_in}" if row.removed_in else ""),
            setting,
            command=f"unset {setting.name}",
        )
    elif row.status is VariableStatus.ALIAS:
        yield from _judge_alias(setting, row, others, context)
    elif row.status is VariableStatus.DEPRECATED:
        yield _deprecated_finding(setting, row)
    if row is not None and row.status is not VariableStatus.REMOVED:
        yield from _judge_newer(setting, row, context)
    if not setting.exported and (row.read_at if row else family_of(setting.name)):
        yield variable_finding(
            VARIABLE_NOT_HANDED_ON,
            f"{setting} is set without export, so that programs started by "
            f"{setting.origin} do not inherit it",
            setting,
            command=f'export {setting.name}="${setting.name}"',
        )


def _never_read_finding(setting: VariableSetting, row: VariableEntry) -> Finding:
    value = truncate(setting.value or "…")
    if row.replaced_by == _GROUP:
        limit = value if value.isdigit() else "…"
        return variable_finding(
            NCCL_TIMEOUT_IGNORED,
            f"{setting} has no effect: nothing in NCCL or torch reads it. The "
            f"process group's timeout "
            "applies (10 minutes for NCCL, 30 for gloo); set it by "
            "init_process_group(timeout=timedelta("
            f"seconds={limit})) or holdfast run --group-timeout {limit}",
            setting,
        )
    reason = f"; {row.effect.partition('; ')[2]}" if "; " in row.effect else ""
    if not row.replaced_by:
        return variable_finding(
            VARIABLE_NEVER_READ,
            f"{setting.name} has no effect: nothing reads it{reason}",
            setting,
            command=f"unset {setting.name}",
        )
    new = row.replaced_by
    if new == "NCCL_SOCKET_RETRY_CNT":
        new, reason = "NCCL_SOCKET_RETRY_CNT (with NCCL_SOCKET_RETRY_SLEEP_MSEC)", ""
    return variable_finding(
        VARIABLE_NEVER_READ,
        f"{setting.name} has no effect: nothing reads it; use {new}",
        setting,
        advice=f"Remove {setting.name} from {setting.location}{reason or f'; {row.effect}'}.",
        command=f"unset {setting.name}",
    )


def _judge_removed(
    setting: VariableSetting, row: VariableEntry, context: AuditContext
) -> Iterator[Finding]:
    effect = row.effect.removeprefix("Removed. ")
    cause = VARIABLE_OF_ANOTHER_VERSION
    if effect.startswith("Harmful"):
        yield variable_finding(
            cause,
            f"{setting} ends the process: current libfabric aborts if it is set",
            setting,
            level=Level.ERROR,
            command=f"unset {setting.name}",
        )
        return
    installed = _installed_version(row, context)
    if installed and row.gone and parse_release(installed) < row.gone:
        yield variable_finding(
            cause,
            f"{setting} works in the installed {row.library} {installed}, but was "
            f"removed in {row.removed_in}",
            setting,
            level=Level.NOTE,
        )
        return
    instead = f"; the closest replacement is {row.replaced_by}" if row.replaced_by else ""
    reader = {"nccl": "NCCL", "torch": "torch"}.get(row.library, row.owner)
    former_effect = effect[:1].lower() + effect[1:]
    yield variable_finding(
        cause,
        f"{setting.name} has no effect: {reader} removed it in {row.removed_in}{instead} "
        f"({former_effect})",
        setting,
        command=f"unset {setting.name}",
    )


def _judge_alias(
    setting: VariableSetting,
    row: VariableEntry,
    others: Mapping[str, VariableSetting],
    context: AuditContext,
) -> Iterator[Finding]:
    new = row.replaced_by
    if new in others or (setting.name, new) == ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        # `contradictions` compares both names; the allocator's old one works and takes precedence.
        return
    value = "…" if setting.value is None else shlex.quote(truncate(setting.value))
    if setting.name == "NCCL_ASYNC_ERROR_HANDLING" and context.elastic:
        yield variable_finding(
            VARIABLE_RENAMED,
            f"{setting.name} has no effect here: the elastic agent sets {new}=1 if it is unset; "
            f"use {new}={value}",
            setting,
            command=f"export {new}={value}",
        )
    elif setting.name == "TORCH_NCCL_TRACE_BUFFER_SIZE":
        yield variable_finding(
            VARIABLE_RENAMED,
            f"{setting.name} is an old name that torch still reads, with a warning, and the only "
            f"one that the NCCL process group checks before it dumps; set {new} to the same value",
            setting,
            level=Level.NOTE,
            command=f"export {new}={value}",
        )
    else:
        reader = "NCCL" if row.owner == "nccl" else "torch"
        warning = ", with a warning" if reader == "torch" else ""
        yield variable_finding(
            VARIABLE_RENAMED,
            f"{setting.name} is an old name that {reader} still reads{warning}; use {new}={value}",
            setting,
            level=Level.NOTE,
            command=f"export {new}={value}",
        )


def _deprecated_finding(setting: VariableSetting, row: VariableEntry) -> Finding:
    instead = f"; use {row.replaced_by}" if row.replaced_by else ""
    return variable_finding(
        VARIABLE_RENAMED,
        f"{setting} is deprecated{instead} ({row.effect})",
        setting,
        level=Level.NOTE,
    )


def _judge_newer(
    setting: VariableSetting, row: VariableEntry, context: AuditContext
) -> Iterator[Finding]:
    installed = _installed_version(row, context)
    if installed and row.first and parse_release(installed) < row.first:
        yield variable_finding(
            VARIABLE_OF_ANOTHER_VERSION,
            f"{setting} has no effect here: {row.library} {installed} is "
            f"installed, and only {row.since} or newer reads it",
            setting,
            command=f"unset {setting.name}",
        )


def _judge_unknown_name(setting: VariableSetting) -> Iterator[Finding]:
    if intended := closest_name(setting.name):
        value = setting.value if setting.value is not None and setting.value.isalnum() else "…"
        yield variable_finding(
            VARIABLE_NEVER_READ,
            f"{setting.name} has no effect: nothing reads it; did you mean {intended}?",
            setting,
            command=f"export {intended}={value}" if value != "…" else "",
            confidence=0.85,
        )
    elif (
        family_of(setting.name)
        and setting.name not in _HARMLESS
        and not setting.name.startswith(_PLUGINS)
    ):
        yield variable_finding(
            VARIABLE_NEVER_READ,
            f"{setting.name} is not a known variable of NCCL or torch; a plugin or the program "
            f"itself may read it",
            setting,
            level=Level.NOTE,
            confidence=0.5,
        )


def _installed_version(row: VariableEntry, context: AuditContext) -> str:
    return {"nccl": context.nccl, "torch": context.torch}.get(row.library, "")
