"""History of timed-out and slow collectives over many runs.

File format, and advice derived from it.

Training processes write it (``training/collectives/timeout_history.py``); ``holdfast diagnose`` and
the incident page show it. A file is never trusted: what violates the types and bounds below is
rejected as a whole, and an adapted timeout always stays below the policy's ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec.structs import replace

from holdfast.core.documents import decode_document
from holdfast.core.errors import InvalidValue
from holdfast.core.text import format_duration, pluralize

SCHEMA = "holdfast/history/1"
MAX_BYTES = 1 << 20
#: Kinds of calls in a file; the oldest are dropped first.
MAX_PROBLEMS = 256
#: A kind of call without a problem in this many runs is dropped.
FORGET_AFTER_RUNS = 10
#: Reports of one call by several ranks count as one event if they are less than this apart.
SAME_EVENT_S = 60.0

#: Chunking is advised from this size on; chunks start at the first size and never go below the
#: least.
CHUNKED_FROM = 26  # as a power of two
_FIRST_CHUNK, _LEAST_CHUNK = 32 << 20, 1 << 20
_MAX_DELAY = 4

_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class CollectiveProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Timed-out or slow calls of one operation, group, size, phase, link and source line.

    ``size``: the calls stay below 2**size bytes. Of ``timeouts``, ``absent`` had missing ranks.
    ``longest_s`` is the longest successful call. ``at_limit`` counts timeouts at ``limit_s``, the
    longest timeout that expired and for which a longer one may help. Runs are numbered by the file;
    ``call`` is twice the number of the latest call, plus one if it timed out; ``at`` is its Unix
    time in seconds.
    """

    operation: _Text
    group: _Text
    size: Annotated[int, msgspec.Meta(ge=0, le=64)]
    phase: _Text
    link: _Text
    site: _Text
    words: _Text = ""
    timeouts: _Count = 0
    absent: _Count = 0
    slow: _Count = 0
    longest_s: _Seconds = 0.0
    limit_s: _Seconds = 0.0
    at_limit: _Count = 0
    bandwidth: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0
    runs: _Count = 0
    last_run: _Count = 0
    call: _Count = 0
    at: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0

    @property
    def key(self) -> tuple[str | int, ...]:
        """Return what identifies this kind of call."""
        return (self.operation, self.group, self.size, self.phase, self.link, self.site)


class CollectiveHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The file: ``runs`` were counted, the last of which is ``run``."""

    schema: _Text = SCHEMA
    runs: _Count = 0
    run: _Text = ""
    troubles: Annotated[tuple[CollectiveProblem, ...], msgspec.Meta(max_length=MAX_PROBLEMS)] = ()

    def in_run(self, run: str) -> CollectiveHistory:
        """Return the history with ``run`` counted and outdated kinds of calls dropped."""
        if run == self.run:
            return self
        runs = self.runs + 1
        recent = tuple(
            problem for problem in self.troubles if runs - problem.last_run <= FORGET_AFTER_RUNS
        )
        return replace(self, runs=runs, run=run, troubles=recent)

    def noting(self, event: CollectiveProblem) -> CollectiveHistory:
        """Return the history with one more event, which is a problem with counts of one."""
        problems = {problem.key: problem for problem in self.troubles}
        before = problems.pop(event.key, None)
        event = replace(event, last_run=self.runs, runs=1)
        problems[event.key] = event if before is None else _merge_event(before, event)
        return replace(self, troubles=tuple(problems.values())[-MAX_PROBLEMS:])


def _merge_event(before: CollectiveProblem, event: CollectiveProblem) -> CollectiveProblem:
    """Add an event, unless another rank has reported it already."""
    same_run = event.last_run == before.last_run
    if same_run and event.call == before.call and abs(event.at - before.at) < SAME_EVENT_S:
        return replace(before, longest_s=max(before.longest_s, event.longest_s))
    longer = event.limit_s > 1.01 * before.limit_s
    at_limit = event.at_limit if longer else before.at_limit + event.at_limit
    return replace(
        event,
        timeouts=before.timeouts + event.timeouts,
        absent=before.absent + event.absent,
        slow=before.slow + event.slow,
        longest_s=max(before.longest_s, event.longest_s),
        limit_s=max(before.limit_s, event.limit_s),
        at_limit=at_limit,
        bandwidth=event.bandwidth or before.bandwidth,
        runs=before.runs + (not same_run),
    )


def merge_histories(histories: Iterable[CollectiveHistory]) -> CollectiveHistory:
    """Merge the histories of several hosts.

    Each counts the events it saw, so the highest count wins.
    """
    best: dict[tuple[str | int, ...], CollectiveProblem] = {}
    runs = 0
    for history in histories:
        runs = max(runs, history.runs)
        for problem in history.troubles:
            other = best.get(problem.key)
            if other is None or (problem.timeouts, problem.slow) > (other.timeouts, other.slow):
                best[problem.key] = problem
    newest = sorted(best.values(), key=lambda problem: problem.at)
    return CollectiveHistory(runs=runs, troubles=tuple(newest[-MAX_PROBLEMS:]))


def parse_history(data: bytes, name: str) -> CollectiveHistory:
    """Parse the content of a file; ``name`` is the file's, for errors.

    Raises:
        InvalidValue: it is too large or has an unsupported format.
    """
    return decode_document(
        data,
        CollectiveHistory,
        schema=SCHEMA,
        max_bytes=MAX_BYTES,
        error=lambda problem: InvalidValue(
            f"the history {name}", why=f"it {problem}", next_step="delete the file, or leave it out"
        ),
    )


# ---- advice


class CollectiveAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice: a longer timeout, chunking, evaluations to skip after each.

    With one reason for each.
    """

    least_limit_s: float = 0.0
    chunk_bytes: int | None = None
    evaluation_delay: int = 0
    reasons: tuple[str, ...] = ()


def advise(problem: CollectiveProblem, runs: int) -> CollectiveAdvice:
    """Derive advice from one kind of call, after ``runs`` runs.

    Two timeouts at one limit double the limit if all ranks had entered the call (the link was too
    slow), or in an evaluation (a rank had more work); in training, a missing rank would not have
    come later. A successful call that took more than half of its limit gets three times its
    duration.
    """
    reasons, present = [], problem.timeouts - problem.absent
    call = f"{problem.words or problem.operation} at {problem.site}"
    counted = (
        f"{pluralize(problem.timeouts, 'timeout')} in {pluralize(max(runs, problem.runs), 'run')}"
    )
    least = 0.0
    if problem.at_limit:  # a limit that was raised before stays raised
        least = problem.limit_s * (2 if problem.at_limit > 1 else 1)
    if problem.at_limit > 1:
        speed = (
            f" while bandwidth was {problem.bandwidth / 1e9:.2g} GB/s" if problem.bandwidth else ""
        )
        was = format_duration(problem.limit_s)
        reasons.append(
            f"timeout of {call} raised from {was} to {format_duration(least)}: "
            f"{counted} took {was} or more{speed}"
        )
    if problem.longest_s > problem.limit_s / 2 and 3 * problem.longest_s > least and problem.slow:
        least = 3 * problem.longest_s
        reasons.append(
            f"timeout of {call} at least {format_duration(least)}: "
            f"one took {format_duration(problem.longest_s)}"
        )
    chunk = None
    if present > 1 and problem.size > CHUNKED_FROM:
        chunk = max(_FIRST_CHUNK >> min(present // 2 - 1, 8), _LEAST_CHUNK)
        reasons.append(f"{call} in chunks of {chunk >> 20} MiB: {counted} with all ranks in it")
    delay = min(problem.timeouts // 2, _MAX_DELAY) if problem.phase == "evaluation" else 0
    if delay:
        reasons.append(f"{pluralize(delay, 'evaluation')} skipped after each: {counted} in {call}")
    return CollectiveAdvice(
        least_limit_s=least, chunk_bytes=chunk, evaluation_delay=delay, reasons=tuple(reasons)
    )


def combine_advice(advice: Iterable[CollectiveAdvice]) -> CollectiveAdvice:
    """Combine several pieces of advice into the most cautious one."""
    entries = list(advice)
    chunks = [entry.chunk_bytes for entry in entries if entry.chunk_bytes is not None]
    return CollectiveAdvice(
        least_limit_s=max((entry.least_limit_s for entry in entries), default=0.0),
        chunk_bytes=min(chunks, default=None),
        evaluation_delay=max((entry.evaluation_delay for entry in entries), default=0),
        reasons=tuple(dict.fromkeys(reason for entry in entries for reason in entry.reasons)),
    )


def describe_problem(problem: CollectiveProblem, runs: int) -> str:
    """Describe one kind of call in a sentence."""
    details = []
    if problem.timeouts:
        absent = f" (ranks missing in {problem.absent})" if problem.absent else ""
        details.append(f"{pluralize(problem.timeouts, 'timeout')}{absent}")
    if problem.slow:
        longest = format_duration(problem.longest_s)
        details.append(f"{problem.slow:,} slow, the longest took {longest}")
    if problem.limit_s:
        details.append(f"the timeout was {format_duration(problem.limit_s)}")
    if problem.bandwidth:
        details.append(f"{problem.bandwidth / 1e9:.2g} GB/s")
    context = f"group {problem.group!r}, {problem.link}, {problem.phase}"
    frequency = f"in {problem.runs:,} of {pluralize(max(runs, problem.runs), 'run')}"
    return (
        f"{problem.words or problem.operation} at {problem.site} ({context}), {frequency}: "
        f"{'; '.join(details)}"
    )
