"""Is this host fit to train? Make the checks, ask their rules, and put the answers together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.facts.checks import Check, Place, Seen, chosen, unknowns
from holdfast.facts.checks.running import Look, look
from holdfast.findings import Fact, Finding, Level, Unknown, Verdict
from holdfast.report.checks import Line, State
from holdfast.rules import preflight
from holdfast.rules.machine import judge

COULD_NOT_JUDGE = 3
_GRAVEST_FIRST = (State.ERROR, State.UNKNOWN, State.WARNING, State.NOTE)


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one host, seen and judged. ``unseen``: why parts of it could not be seen."""

    name: str
    host: str
    state: State
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    elapsed_s: float


class Report(msgspec.Struct, frozen=True):
    """All checks of all hosts, and the verdict."""

    checks: tuple[Checked, ...]
    verdict: Verdict
    elapsed_s: float

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all checks."""
        return tuple(claim for each in self.checks for claim in each.findings)

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 an error was found, 3 nothing could be seen."""
        if any(claim.level is Level.ERROR for claim in self.findings):
            return 1
        return COULD_NOT_JUDGE if all(each.state is State.UNKNOWN for each in self.checks) else 0


def check_host(place: Place, names: Sequence[str] = (), tell: Callable[[str], None] | None = None) -> Report:
    """Make the checks called so, or all, on this host; ``tell`` hears the name of each as it ends.

    Raises:
        UnknownName: there is no such check.
    """
    begun = time.monotonic()
    said = (lambda found: tell(found.check.name)) if tell is not None else None
    looks = look(place, chosen(tuple(names)), said)
    checks = judged(looks, place, os.uname().nodename, time.time())
    unseen = tuple(f"{each.name}: {why}" for each in checks for why in each.unseen)
    findings = [claim for each in checks for claim in each.findings]
    return Report(checks, preflight.verdict(findings, unseen), round(time.monotonic() - begun, 3))


def judged(looks: Mapping[str, Look], place: Place, host: str, at: float) -> tuple[Checked, ...]:
    """What was seen on one host, with what its rules say."""
    return tuple(_judged(found.check, found, place, host, at) for found in looks.values())


def _judged(check: Check, found: Look, place: Place, host: str, at: float) -> Checked:
    seen = found.seen
    findings: tuple[Finding, ...] = ()
    facts: tuple[Fact, ...] = ()
    if not isinstance(seen, Unknown):
        try:
            facts = tuple(msgspec.structs.replace(fact, host=host, time=at) for fact in seen.facts())
            findings = () if seen.absent else judge(check, seen, place, host, at)
        except Exception as error:  # noqa: BLE001 - a rule that fails on a strange host must not take the others with it
            seen = Unknown(f"it was seen and could not be judged: {type(error).__name__}: {error}")
    unseen = tuple(dict.fromkeys(unknowns(seen)))
    return Checked(
        name=check.name, host=host, state=_state(seen, findings, unseen), facts=facts, findings=findings,
        unseen=unseen, elapsed_s=found.elapsed_s,
    )  # fmt: skip


def _state(seen: Seen | Unknown, findings: Sequence[Finding], unseen: Sequence[str]) -> State:
    told = {State(claim.level.value) for claim in findings}
    if told:
        return next(state for state in _GRAVEST_FIRST if state in told)
    if unseen:
        return State.UNKNOWN
    return State.ABSENT if not isinstance(seen, Unknown) and seen.absent else State.OK


def lines(report: Report) -> tuple[Line, ...]:
    """The checks for the terminal."""
    return tuple(Line(each.name, each.host, each.state, _said(each)) for each in report.checks)


def _said(checked: Checked) -> str:
    """What was seen first, or why nothing was."""
    if checked.findings:
        return checked.findings[0].message
    if checked.unseen:
        return checked.unseen[0]
    return checked.facts[0].text.removeprefix(f"{checked.name.replace('-', ' ')}: ") if checked.facts else ""
