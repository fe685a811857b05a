"""Judges whether a launcher sends a variable to the ranks on other hosts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from holdfast.causes.environment.variable_not_sent import VARIABLE_NOT_SENT
from holdfast.core.findings import Finding
from holdfast.core.variable_table import VariableStatus, family_of, variable_entries
from holdfast.host.environment import redact_value
from holdfast.host.variable_rules.context import variable_finding
from holdfast.host.variable_sources import DEEPSPEED_FILE as FILE
from holdfast.host.variable_sources import VariableSetting

#: Prefixes that DeepSpeed's launcher sends: EXPORT_ENVS of its runner.py, and export_envs() of its
#: accelerator.
SENT = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
#: Variables that the launcher sets itself for each rank (deepspeed/launcher/launch.py).
_SET_BY_LAUNCHER = frozenset(
    """
    MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_SIZE NODE_RANK LOCAL_WORLD_SIZE
    CROSS_RANK CROSS_SIZE CUDA_VISIBLE_DEVICES
    """.split()
)
#: Nothing reads these, which another rule reports; sending them would not help.
_UNREAD = (VariableStatus.NEVER_READ, VariableStatus.REMOVED, VariableStatus.UNUSED)


def judge(settings: Sequence[VariableSetting]) -> Iterator[Finding]:
    """Report variables of scripts that start DeepSpeed on several hosts, and are not sent there."""
    in_file = {
        (str(PurePath(setting.origin).parent), setting.name)
        for setting in settings
        if PurePath(setting.origin).name == FILE
    }
    for setting in settings:
        name = setting.name
        row = variable_entries().get(name)
        read = bool(family_of(name)) if row is None else row.status not in _UNREAD
        if setting.sender is None or not read or name in _SET_BY_LAUNCHER or name.startswith(SENT):
            continue
        if (str(PurePath(setting.origin).parent), name) not in in_file:
            value = setting.value or ""
            printable = value.isprintable() and redact_value(name, value) == value
            yield variable_finding(
                VARIABLE_NOT_SENT,
                f"{setting} does not reach the ranks: with a hostfile, deepspeed "
                f"(line {setting.sender}) sends only variables that begin with "
                f"{', '.join(SENT[:-1])} or {SENT[-1]}, and those in {FILE}",
                setting,
                advice=(
                    f"Add it to {FILE} in the folder where the launcher starts, or in the home "
                    f"folder."
                ),
                command=f"echo {shlex.quote(f'{name}={value}')} >> {FILE}"
                if value and printable
                else "",
                confidence=0.8,
            )
