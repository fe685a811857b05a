"""Builds findings about one rank: its subject, its line, its stack as evidence."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.core.findings import Cause, Fact, Finding, make_finding
from holdfast.core.rank_table import RaisedException, RankState, SourceLine
from holdfast.core.text import shorten
from holdfast.host.processes.user_code import innermost_user_frame, is_library_frame
from holdfast.watcher.rules.placeholders import fill_remedy
from holdfast.watcher.rules.subjects import rank_subject

_CPP_LINE = re.compile(r"^\[\S{1,300}\.\w{1,4}:\d{1,6}\] ")
_PORT = re.compile(r"\bport:? `?(\d{1,5})\b")


class Evidence(NamedTuple):
    """A fact about the rank in question: where it was read, and what it says."""

    origin: str
    text: str


def rank_finding(
    cause: Cause,
    state: RankState,
    message: str,
    line: SourceLine | None,
    *evidence: Evidence,
    confidence: float = 0.9,
) -> Finding:
    """Return the finding that this rank is the subject of, with its stack as evidence."""
    host = state.host or None
    facts = tuple(
        Fact(text=item.text, origin=item.origin, rank=state.rank, host=host) for item in evidence
    )
    values = {"PID": str(state.pid or ""), "HOST": state.host, "MASTER_PORT": _port(state)}
    return make_finding(
        cause,
        message,
        subject=rank_subject(state.rank, host, line),
        evidence=(*facts, *stack_facts(state)),
        remedies=tuple(fill_remedy(remedy, values) for remedy in cause.remedies),
        confidence=confidence,
    )


def stack_facts(state: RankState) -> tuple[Fact, ...]:
    """Summarize the newest stack: the innermost frame, and the user's frames around it."""
    if not state.stacks:
        return ()
    newest = state.stacks[-1]
    own = [frame for frame in newest.frames[1:] if not is_library_frame(frame.file)]
    text = " < ".join(f"{frame.short} {frame.function}" for frame in (*newest.frames[:1], *own[:5]))
    if len(state.stacks) > 1 and state.stacks[-2].frames == newest.frames:
        text += ", the same in two samples"
    return (
        Fact(
            text=text,
            origin=newest.origin,
            rank=state.rank,
            host=state.host or None,
            time=newest.time or None,
        ),
    )


def last_line(state: RankState) -> SourceLine | None:
    """Return the last known line in user code: of the stack, else of the last call."""
    if state.stacks:
        return innermost_user_frame(state.stacks[-1])
    calls = (*state.recent, *state.pending)
    return max(calls, key=lambda call: call.entered).site if calls else None


def at_line(line: SourceLine | None, before: str = " ") -> str:
    """Return the text `` train.py:41 in step()`` after ``before``; empty without a line."""
    if line is None:
        return ""
    function = (
        f" in {line.function}()" if line.function and not line.function.startswith("<") else ""
    )
    return f"{before}{line.short}{function}"


def _port(state: RankState) -> str:
    """Return the port in the message of the exception; empty without one."""
    found = _PORT.search(state.raised.text[:2000]) if state.raised is not None else None
    return found[1] if found is not None else ""


#: Characters of the exception in the headline of a root cause; its advice is often at the end.
HEADLINE_CHARACTERS = 500


def describe_exception(raised: RaisedException, length: int = 160) -> str:
    """Return type and first line of an exception, without the line of C++ that raised it."""
    first = _CPP_LINE.sub("", next(iter(raised.text.splitlines()), ""))
    return shorten(f"{raised.type}: {first}".rstrip(": "), length)
