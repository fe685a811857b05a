"""What befell collectives over many runs, and what follows from it: the format of the file, and the rules of learning.

Training processes write it (``runtime/comm/history.py``), ``holdfast diagnose`` and the page of an incident show it. A
file is never trusted: what does not fit the types and bounds below is refused whole, and whatever it says, a limit that
is learnt stays below the policy's ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec.structs import replace

from holdfast.errors import BadValue
from holdfast.report.text import duration, plural

SCHEMA = "holdfast/history/1"
MOST_BYTES = 1 << 20
#: Kinds of calls that a file remembers; the ones without trouble for longest are forgotten first.
MOST_TROUBLES = 256
#: Without trouble in so many runs, a kind of call is forgotten.
FORGET_AFTER_RUNS = 10
#: The same call of several ranks is one event: they give up within less than this of each other.
SAME_EVENT_S = 60.0

#: From so many bytes on, pieces are advised, at first of this size, and never smaller than the least.
CHUNKED_FROM = 26  # as a power of two
_FIRST_CHUNK, _LEAST_CHUNK = 32 << 20, 1 << 20
_MOST_DELAY = 4

_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that timed out or were slow, of one operation, group, size, phase, link and line of the script.

    ``size`` is the power of two of bytes that they stay below, ``absent`` of ``timeouts`` lacked ranks, ``longest_s``
    is that of a call that ended well. ``at_limit`` counts time-outs at ``limit_s``, the longest limit that ended one
    for which a longer one may help. Runs are numbered by the file; ``call`` is twice the number of the latest call, one
    more where that timed out, and ``at`` its time in Unix seconds.
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
        """What makes calls alike."""
        return (self.operation, self.group, self.size, self.phase, self.link, self.site)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The file: ``runs`` were counted, the last of which is ``run``."""

    schema: _Text = SCHEMA
    runs: _Count = 0
    run: _Text = ""
    troubles: Annotated[tuple[Trouble, ...], msgspec.Meta(max_length=MOST_TROUBLES)] = ()

    def in_run(self, run: str) -> History:
        """The same with ``run`` counted, and without what has been well for long."""
        if run == self.run:
            return self
        runs = self.runs + 1
        kept = tuple(each for each in self.troubles if runs - each.last_run <= FORGET_AFTER_RUNS)
        return replace(self, runs=runs, run=run, troubles=kept)

    def noting(self, event: Trouble) -> History:
        """The same with one more event, which is a trouble with counts of one."""
        found = {each.key: each for each in self.troubles}
        before = found.pop(event.key, None)
        event = replace(event, last_run=self.runs, runs=1)
        found[event.key] = event if before is None else _joined(before, event)
        return replace(self, troubles=tuple(found.values())[-MOST_TROUBLES:])


def _joined(before: Trouble, event: Trouble) -> Trouble:
    """One event more, unless another rank has noted it already."""
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


def merged(histories: Iterable[History]) -> History:
    """What several hosts wrote, as one; each of them counts the events that it saw, so that the most counts."""
    best: dict[tuple[str | int, ...], Trouble] = {}
    runs = 0
    for history in histories:
        runs = max(runs, history.runs)
        for each in history.troubles:
            other = best.get(each.key)
            if other is None or (each.timeouts, each.slow) > (other.timeouts, other.slow):
                best[each.key] = each
    newest = sorted(best.values(), key=lambda each: each.at)
    return History(runs=runs, troubles=tuple(newest[-MOST_TROUBLES:]))


def parse(data: bytes, name: str) -> History:
    """The content of a file.

    Raises:
        BadValue: it is too large, or none that holdfast could have written.
    """
    why = f"it has more than {MOST_BYTES >> 20} MiB" if len(data) > MOST_BYTES else ""
    found = History()
    if not why:
        try:
            found = msgspec.json.decode(data, type=History)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = str(error)
    if found.schema != SCHEMA:
        why = f"its schema is {found.schema!r}, not {SCHEMA!r}"
    if why:
        raise BadValue(f"the history {name}", why=why, next_step="delete the file, or leave it out")
    return found


# ---- what follows


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do differently: a longer limit, pieces, evaluations left out after each; and why, a sentence each."""

    least_limit_s: float = 0.0
    chunk_bytes: int | None = None
    evaluation_delay: int = 0
    reasons: tuple[str, ...] = ()


NONE = Advice()


def learn(trouble: Trouble, runs: int) -> Advice:
    """What one kind of call teaches, after so many runs.

    Two time-outs at one limit double it, where all ranks were in the call (the link was too slow), or in an evaluation
    (some rank had more to do); in training, a rank that did not come would not have come later. A call that ended well
    after more than half of its limit wants three times as long as it took.
    """
    reasons, present = [], trouble.timeouts - trouble.absent
    what = f"{trouble.words or trouble.operation} at {trouble.site}"
    counted = f"{plural(trouble.timeouts, 'time-out')} in {plural(max(runs, trouble.runs), 'run')}"
    least = 0.0
    if trouble.at_limit:  # also what was raised before stays so
        least = trouble.limit_s * (2 if trouble.at_limit > 1 else 1)
    if trouble.at_limit > 1:
        speed = f" while bandwidth was {trouble.bandwidth / 1e9:.2g} GB/s" if trouble.bandwidth else ""
        was = duration(trouble.limit_s)
        reasons.append(f"limit of {what} raised from {was} to {duration(least)}: {counted} took {was} or more{speed}")
    if trouble.longest_s > trouble.limit_s / 2 and 3 * trouble.longest_s > least and trouble.slow:
        least = 3 * trouble.longest_s
        reasons.append(f"limit of {what} at least {duration(least)}: one took {duration(trouble.longest_s)}")
    chunk = None
    if present > 1 and trouble.size > CHUNKED_FROM:
        chunk = max(_FIRST_CHUNK >> min(present // 2 - 1, 8), _LEAST_CHUNK)
        reasons.append(f"{what} in pieces of {chunk >> 20} MiB: {counted} with all ranks in it")
    delay = min(trouble.timeouts // 2, _MOST_DELAY) if trouble.phase == "evaluation" else 0
    if delay:
        reasons.append(f"{plural(delay, 'evaluation')} left out after each: {counted} in {what}")
    return Advice(least_limit_s=least, chunk_bytes=chunk, evaluation_delay=delay, reasons=tuple(reasons))


def worst(advice: Iterable[Advice]) -> Advice:
    """The most careful of several."""
    every = list(advice)
    chunks = [each.chunk_bytes for each in every if each.chunk_bytes is not None]
    return Advice(
        least_limit_s=max((each.least_limit_s for each in every), default=0.0),
        chunk_bytes=min(chunks, default=None),
        evaluation_delay=max((each.evaluation_delay for each in every), default=0),
        reasons=tuple(dict.fromkeys(reason for each in every for reason in each.reasons)),
    )


def sentence(trouble: Trouble, runs: int) -> str:
    """One kind of call, for people."""
    told = []
    if trouble.timeouts:
        who = f" (ranks did not come to {trouble.absent})" if trouble.absent else ""
        told.append(f"{plural(trouble.timeouts, 'time-out')}{who}")
    if trouble.slow:
        told.append(f"{trouble.slow:,} slow, the longest took {duration(trouble.longest_s)}")
    if trouble.limit_s:
        told.append(f"the limit was {duration(trouble.limit_s)}")
    if trouble.bandwidth:
        told.append(f"{trouble.bandwidth / 1e9:.2g} GB/s")
    where = f"group {trouble.group!r}, {trouble.link}, {trouble.phase}"
    seen = f"in {trouble.runs:,} of {plural(max(runs, trouble.runs), 'run')}"
    return f"{trouble.words or trouble.operation} at {trouble.site} ({where}), {seen}: {'; '.join(told)}"
