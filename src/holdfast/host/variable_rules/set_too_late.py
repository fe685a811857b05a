"""Judges whether a program sets a variable after it was read."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.environment.variable_set_too_late import VARIABLE_SET_TOO_LATE
from holdfast.core.findings import Finding, Level
from holdfast.core.variable_table import READ_MOMENTS, ReadMoment, VariableStatus, variable_entries
from holdfast.host.variable_rules.context import variable_finding
from holdfast.host.variable_sources import VariableSetting

#: How the time of reading shows in the source.
_DESCRIPTIONS = {
    ReadMoment.IMPORT: "torch is imported",
    ReadMoment.CUDA: "CUDA is used",
    ReadMoment.GROUP: "init_process_group is called",
    ReadMoment.COMMUNICATOR: "a collective is called",
}


def judge(setting: VariableSetting) -> Iterator[Finding]:
    """Judge a variable set by a program; those that a launcher sets are never too late."""
    row = variable_entries().get(setting.name)
    if row is None or row.status not in (
        VariableStatus.ACTIVE,
        VariableStatus.ALIAS,
        VariableStatus.DEPRECATED,
    ):
        return
    done_before = dict(setting.done_before)
    moment = row.read_at
    if (
        moment is ReadMoment.COMMUNICATOR
        and moment not in done_before
        and ReadMoment.GROUP in done_before
    ):
        yield variable_finding(
            VARIABLE_SET_TOO_LATE,
            f"{setting} is set after init_process_group (line "
            f"{done_before[ReadMoment.GROUP]}); it is read {READ_MOMENTS[moment]}",
            setting,
            level=Level.NOTE,
            advice="Set it before init_process_group, or better where the job starts.",
            confidence=0.6,
        )
    elif moment in done_before:
        yield variable_finding(
            VARIABLE_SET_TOO_LATE,
            f"{setting} has no effect: {_DESCRIPTIONS[moment]} in line "
            f"{done_before[moment]}, and it is read {READ_MOMENTS[moment]}",
            setting,
            advice="Set it where the job starts, or above that line.",
            confidence=0.85,
        )
    elif moment is ReadMoment.LAUNCH and setting.origin.endswith(".py"):
        yield variable_finding(
            VARIABLE_SET_TOO_LATE,
            f"{setting} has no effect in the program: it is read {READ_MOMENTS[moment]}",
            setting,
            level=Level.NOTE,
            confidence=0.6,
        )
