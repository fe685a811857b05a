"""Run the items of a checklist: host checks together, commands at most four at once."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.core import settings
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.text import os_error_reason
from holdfast.host.checks import CHECKS, CheckContext
from holdfast.preflight.check import check_host, report_lines
from holdfast.preflight.checklists import facts
from holdfast.preflight.checklists.items import PLACEHOLDERS, ChecklistItem
from holdfast.preflight.checklists.outcome import (
    ItemOutcome,
    combine_states,
    describe_output,
    state_of_status,
)
from holdfast.report.check_table import CheckLine, CheckState

_AT_ONCE = 4
#: State and reason of one item.
_Result = tuple[CheckState, str]


class ChecklistContext(msgspec.Struct, frozen=True):
    """Values of placeholders; those that the user did not set are absent."""

    values: dict[str, str]

    def check_context(self) -> CheckContext:
        """Return what the host checks need."""
        workers, endpoint = self.values.get("nproc_per_node"), self.values.get("endpoint", "")
        host, _, port = endpoint.rpartition(":")
        return CheckContext(
            environ=settings.current_environment(),
            workers=int(workers) if workers else None,
            checkpoints=self.values.get("checkpoints"),
            endpoint=(host.strip("[]"), int(port)) if host and port.isdecimal() else None,
        )


def run_items(
    items: Sequence[ChecklistItem],
    context: ChecklistContext,
    on_item: Callable[[str], None] = lambda _: None,
) -> tuple[ItemOutcome, ...]:
    """Return the outcome of every item, in order; ``on_item`` gets the id of each when it ends.

    Raises:
        UnknownName: an item names a check or fact that does not exist.
    """
    for item in items:
        for name in item.checks:
            if name not in CHECKS:
                raise UnknownName(f"check of item {item.id}:", name, CHECKS)
        if item.fact and item.fact not in facts.FACTS:
            raise UnknownName(f"fact of item {item.id}:", item.fact, facts.FACTS)
    names = tuple(dict.fromkeys(name for item in items for name in item.checks))

    def run(item: ChecklistItem) -> ItemOutcome:
        begun = time.monotonic()
        state, text = _run_item(item, context, lines)
        on_item(item.id)
        return ItemOutcome(
            id=item.id,
            title=item.title,
            state=state,
            text=text,
            command=_fill(item.shown_command, context.values),
            action=item.action,
            elapsed_s=round(time.monotonic() - begun, 3),
        )

    lines: Mapping[str, CheckLine] = {}
    if names:
        report = check_host(context.check_context(), names)
        lines = {line.name: line for line in report_lines(report.checks)}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(run, items))


def _run_item(
    item: ChecklistItem, context: ChecklistContext, lines: Mapping[str, CheckLine]
) -> _Result:
    """Return state and reason; what cannot be run is unknown."""
    missing = [name for name in item.placeholders if name not in context.values]
    if missing:
        return CheckState.UNKNOWN, f"not checked: {_why_missing(missing[0], context)}"
    if item.checks:
        return _combine([lines[name] for name in item.checks])
    if item.fact:
        try:
            return facts.FACTS[item.fact](item.subject.format(**context.values))
        except (HoldfastError, OSError) as error:
            return CheckState.UNKNOWN, str(error)
    words = shlex.split(item.command)
    return _run_command([word.format(**context.values) for word in words], item.limit_s)


def _why_missing(placeholder: str, context: ChecklistContext) -> str:
    if placeholder == "newest_checkpoint" and "checkpoints" in context.values:
        return f"no checkpoint in {context.values['checkpoints']}"
    return f"needs {PLACEHOLDERS[placeholder]}"


def _combine(lines: Sequence[CheckLine]) -> _Result:
    """Return the most severe state of several host checks, and the lines that have it."""
    state = combine_states([line.state for line in lines])
    return state, "; ".join(f"{line.name}: {line.text}" for line in lines if line.state is state)


def _run_command(words: list[str], limit_s: float) -> _Result:
    own = words[:1] == ["holdfast"]
    started = [sys.executable, "-m", *words, "--json"] if own else words
    try:
        done = subprocess.run(
            started,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CheckState.UNKNOWN, f"not done after {limit_s:g} s"
    except OSError as error:
        return CheckState.UNKNOWN, f"{words[0]}: {os_error_reason(error)}"
    text = describe_output(done.stdout, done.stderr)
    state = state_of_status(words, done.returncode)
    return state, text or f"exit status {done.returncode}"


def _fill(command: str, values: Mapping[str, str]) -> str:
    """Return the command with the values that are known; others stay in braces."""
    for name in PLACEHOLDERS:
        if name in values:
            command = command.replace(f"{{{name}}}", shlex.quote(values[name]))
    return command
