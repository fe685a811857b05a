"""From what a check or command returned to the state of an item; what is unknown never passes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.text import one_line, shorten
from holdfast.report.check_table import CheckState

_MOST_SEVERE_FIRST = (
    CheckState.ERROR,
    CheckState.UNKNOWN,
    CheckState.WARNING,
    CheckState.NOTE,
    CheckState.OK,
)
#: Exit statuses of holdfast's commands; every other one is unknown.
_OWN_STATES = {0: CheckState.OK, 1: CheckState.ERROR}
#: A shell's statuses for a program that cannot be started, and for signals.
_NOT_RUN = 126
_LONGEST = 300


class ItemOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one item: its ``state``, why, and what to do unless it passed."""

    id: str
    title: str
    state: CheckState
    text: str
    command: str
    action: str
    elapsed_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Return whether nothing is to be done."""
        return self.state in (CheckState.OK, CheckState.ABSENT)


def combine_states(states: Sequence[CheckState]) -> CheckState:
    """Return the most severe state; absent if all are, unknown if there is none."""
    if not states:
        return CheckState.UNKNOWN
    return next((each for each in _MOST_SEVERE_FIRST if each in states), CheckState.ABSENT)


def state_of_status(words: Sequence[str], status: int) -> CheckState:
    """Return the state that the exit status of a command means."""
    if words[:1] == ["holdfast"]:
        return _OWN_STATES.get(status, CheckState.UNKNOWN)
    if status == 0:
        return CheckState.OK
    return CheckState.UNKNOWN if status >= _NOT_RUN or status < 0 else CheckState.ERROR


def describe_output(output: str, errors: str) -> str:
    """Return one sentence about the output of a command: its finding, or its last line."""
    document = _document(output)
    if document is not None:
        findings = document.get("findings") or []
        root = (document.get("verdict") or {}).get("root") or {}
        levels = {"error": 0, "unknown": 1, "warning": 2}
        ranked = sorted(findings, key=lambda each: levels.get(each.get("level"), 3))
        message = root.get("message") or next((each["message"] for each in ranked), "")
        return shorten(one_line(message or "nothing wrong"), _LONGEST)
    lines = [*errors.strip().splitlines()[-1:], *output.strip().splitlines()[-1:]]
    return shorten(one_line(next(iter(lines), "")).removeprefix("holdfast: "), _LONGEST)


def exit_status(outcomes: Sequence[ItemOutcome]) -> int:
    """Return 1 if an item failed, 3 if one is unknown, else 0."""
    states = {each.state for each in outcomes}
    if CheckState.ERROR in states:
        return 1
    return 3 if CheckState.UNKNOWN in states or not states else 0


def _document(output: str) -> Mapping[str, Any] | None:
    try:
        document = json.loads(output)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "findings" in document else None
