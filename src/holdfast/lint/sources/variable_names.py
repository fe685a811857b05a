"""Find names of torch, NCCL and gloo environment variables that no library reads today."""

from __future__ import annotations

import re

from holdfast.core.variable_table import VariableStatus, is_relevant, variable_entries

_QUOTED_NAMES = re.compile(
    r"""["']((?:TORCH|N[CL]|GLOO|PET_)[A-Z0-9_]{3,})["']|update\(([A-Z][A-Z0-9_]+)="""
)


def unknown_variables(text: str) -> set[str]:
    """Return the inactive variable names that a text mentions."""
    return set(
        filter(
            is_unknown_variable,
            (quoted or keyword for quoted, keyword in _QUOTED_NAMES.findall(text)),
        )
    )


def is_unknown_variable(name: str) -> bool:
    """Return True for a name of these families that the variable table does not list as active."""
    row = variable_entries().get(name)
    return is_relevant(name) and (row is None or row.status is not VariableStatus.ACTIVE)
