"""Waits for a collective for so long and no longer, and finds out who did not come.

``work.wait(timeout)`` is torch's own: it needs no thread and no signal, may be repeated on the same work, and leaves
the group as it is (measured on gloo). Where the first wait is in vain, the rank writes into the job's store that it is
here; whoever has written nothing when the limit is over has not come.

A call is begun once (:func:`begin`), and may wait for several things in turn (:func:`finish` for works, :func:`poll`
for what nothing wakes): all of them together have its limit.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from holdfast.errors import CollectiveFailed, CollectiveTimeout
from holdfast.report.ranksets import say_ranks
from holdfast.report.text import duration
from holdfast.runtime.comm.groups import GroupState

#: After so long a rank writes down that it waits. Who came later than this before the limit may not have written yet.
PRESENT_AFTER_S = 1.0
#: After this share of the limit, and not before so many seconds, the waiting is said in the log.
SAY_AT, SAY_AFTER_S = 0.1, 10.0
_OWN = str(Path(__file__).resolve().parents[2])
#: Nothing is waited for once more for less; to torch, a limit below a millisecond is none at all.
_TICK_S = 0.002
_FIRST = timedelta(seconds=PRESENT_AFTER_S)
#: What nothing wakes is looked at so often without a pause (some 50 us), and then in pauses that grow up to this.
_SPINS, _LONGEST_PAUSE_S = 200, 0.002

_log = logging.getLogger("holdfast.comm")


@dataclass(slots=True)
class Call:
    """One call, in the words of an error: ``all_reduce of 467,019,003 float32``. Times are of the monotonic clock."""

    words: str
    state: GroupState
    number: int
    limit_s: float
    until: float
    announced: bool = False
    #: When the log says next that it waits.
    say_at: float = field(default=0.0)

    def __str__(self) -> str:
        return f"{self.words} (call {self.number} in group {self.state.name!r})"


def begin(state: GroupState, words: str, limit_s: float) -> Call:
    """Count a call of this group; all its ranks make the same calls in one order, so that they agree on numbers."""
    state.calls += 1
    until = time.monotonic() + limit_s
    return Call(words, state, state.calls, limit_s, until, say_at=until - limit_s + max(SAY_AT * limit_s, SAY_AFTER_S))


def finish(works: Iterable[dist.Work], call: Call) -> None:
    """Wait until all are over, no longer than the call may last.

    Raises:
        CollectiveTimeout: they are not; it names the ranks that did not come.
        CollectiveFailed: one failed.
    """
    for work in works:
        if call.until - time.monotonic() > PRESENT_AFTER_S and _is_over(work, _FIRST, call):
            continue
        while not _is_over(work, timedelta(seconds=max(_slice(call), _TICK_S)), call):
            _look_around(call)


def poll(ready: Callable[[], bool], call: Call) -> None:
    """Wait until ``ready()`` is true, of which nothing tells us, no longer than the call may last.

    Raises:
        CollectiveTimeout: it is not; it names the ranks that did not come.
    """
    for _ in range(_SPINS):
        if ready():
            return
    began, pause = time.monotonic(), 1e-5
    while not ready():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        if time.monotonic() - began > PRESENT_AFTER_S or time.monotonic() > call.until:
            _slice(call)
            _look_around(call)


def _is_over(work: dist.Work, limit: timedelta, call: Call) -> bool:
    """True where the work is done within the limit, False where it goes on."""
    with suppress(RuntimeError):
        work.wait(limit)
        return True
    if not work.is_completed():
        return False
    try:
        work.wait(limit)  # it is over: well, if that came just after the limit, or with the error that ended it
    except RuntimeError as error:
        call.state.broken = f"{call.words} failed in it"
        raise CollectiveFailed(call, why=_first_line(error)) from error
    return True


def _slice(call: Call) -> float:
    """Write down that this rank is here, and say for how many seconds it waits before it looks around."""
    if not call.announced:
        _announce(call)
        call.announced = True
    now = time.monotonic()
    return min(call.until, call.say_at if call.say_at > now else call.until) - now


def _look_around(call: Call) -> None:
    """Give up where the time is over; say once for whom is waited."""
    now = time.monotonic()
    if call.until - now < _TICK_S:
        _give_up(call)
    if now >= call.say_at:
        waited = duration(call.limit_s - (call.until - now))
        _log.warning("still waiting in %s for %s after %s", call, say_missing(missing(call)), waited)
        call.say_at = float("inf")


def _give_up(call: Call) -> None:
    absent = missing(call)
    limit = duration(call.limit_s)
    call.state.broken = f"{call.words} timed out in it after {limit}"
    why = (
        f"{say_missing(absent)} did not come within {limit}"
        if absent
        else f"all ranks were in it, and it was not over within {limit}"
    )
    raise CollectiveTimeout(f"{call} at {site()}", why=why, missing=absent)


# ---- who is here


def _announce(call: Call) -> None:
    """Write down that this rank is in the call, and where."""
    store = call.state.store
    store.set(_key(call, dist.get_rank()), json.dumps({"site": site()}))


def missing(call: Call) -> tuple[int, ...]:
    """The members that have not written that they are in the call."""
    store = call.state.store
    return tuple(rank for rank in call.state.ranks if not store.check([_key(call, rank)]))


def say_missing(ranks: tuple[int, ...]) -> str:
    """``rank 3``; ``nobody`` where none is missing."""
    return say_ranks(ranks) if ranks else "nobody"


def _key(call: Call, rank: int) -> str:
    return f"{call.number}/{rank}"


def site() -> str:
    """The line of the user's that made the call: the innermost frame outside of holdfast."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads the sources of all frames
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
