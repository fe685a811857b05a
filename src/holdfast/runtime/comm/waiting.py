"""Waits for a collective for so long and no longer, and finds out who did not come.

``work.wait(timeout)`` is torch's own: it needs no thread and no signal, and on gloo it may be repeated on the same work
and leaves the group as it is (measured). On NCCL such a wait aborts the communicator when it runs out: there a work is
asked whether it is over. Whoever waits for longer than a second writes into the job's store that it is here; whoever
has written nothing when the limit is over has not come.

A call is begun once (:func:`begin`), and may wait for several things in turn (:func:`finish` for works, :func:`poll`
for what nothing wakes): all of them together have its limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist

from holdfast.errors import BadValue, CollectiveFailed, CollectiveTimeout, UsageError
from holdfast.report.text import duration
from holdfast.runtime.comm import limits, signatures, trouble
from holdfast.runtime.comm.aside import Silent, aside
from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.presence import Call, announce, missing, say_missing, told

_T = TypeVar("_T")
#: After so long a rank writes down that it waits. Who came later than this before the limit may not have written yet.
PRESENT_AFTER_S = 1.0
#: After this share of the limit, and not before so many seconds, the waiting is said in the log.
SAY_AT, SAY_AFTER_S = 0.1, 10.0
#: Nothing is waited for once more for less; to torch, a limit below a millisecond is none at all.
_TICK_S = 0.002
_FIRST = timedelta(seconds=PRESENT_AFTER_S)
#: The store is waited for so long; where it runs, a process may stand still.
_STORE_S = 5.0
#: Limit of a call that is refused because its limit is none: others are told within it.
_ASKING_S = 60.0
#: So often a rank that waits looks for what others have found.
_LOOK_EVERY_S = 1.0
#: What nothing wakes is looked at so often without a pause (some 50 us), and then in pauses that grow up to this.
_SPINS, _LONGEST_PAUSE_S = 200, 0.002

#: What allreduce is asked for if nothing else is said.
_SUM = dist.AllreduceOptions()

_log = logging.getLogger("holdfast.comm")


def begin(state: GroupState, words: str, timeout: float | str | None, *, nbytes: int = 0, wrong: str = "") -> Call:
    """Count a call of this group; all its ranks make the same calls in one order, so that they agree on numbers.

    ``words`` have to be the same on all ranks: by them is found, before any data move, that calls differ. ``timeout``
    is as users give it, None for what the policy says of ``nbytes``. ``wrong`` says why this rank's tensor is refused.

    Raises:
        BadValue: something is ``wrong``; the other ranks get a CollectiveMismatch, where all is well with theirs.
        CollectiveMismatch: another rank's call of this number is a different one. All ranks of the group are told.
    """
    state.calls += 1
    try:
        limit_s = limits.limit_s(state, nbytes, timeout=timeout)
    except UsageError as error:
        wrong, limit_s = wrong or str(error), _ASKING_S
    call = _call(state, words, limit_s, nbytes)
    known = state.kept.get(signatures.Signatures) or _signatures(call)
    new = not known.all_seen and not known.knows(words)
    if wrong:
        call.words += f" (refused: {wrong})"
    if known.differ(call.number, call.words):
        trouble.mismatch(call)
    if wrong:
        trouble.refuse(call, wrong)
        raise BadValue(words.partition(" of ")[0], why=wrong)
    if new:
        _compare_in_store(call)
    return call


def at_once(state: GroupState, words: str, timeout: float | str | None, nbytes: int, tensor: torch.Tensor) -> bool:
    """Sum a tensor as was done before in this group; False where the call has to be begun and finished instead.

    For small tensors that are in nobody's way: until a second is over nothing is made ready that only a longer wait
    needs. After a collective the processor's caches are cold, and what is touched costs more than what is computed.
    ``timeout`` is no less than a second. Raises as :func:`begin` and :func:`finish`.
    """
    known = state.kept.get(signatures.Signatures)
    if known is None or not known.knows(words) or not state.may_wait_again:
        return False
    state.calls += 1
    if known.differ(state.calls, words):
        trouble.mismatch(_call(state, words, limits.limit_s(state, nbytes, timeout=timeout), nbytes))
    work = state.group.allreduce([tensor], _SUM)
    try:
        work.wait(_FIRST)
    except RuntimeError:
        call = _call(state, words, limits.limit_s(state, nbytes, timeout=timeout), nbytes)
        call.until -= PRESENT_AFTER_S
        finish([work], call)
    return True


def _call(state: GroupState, words: str, limit_s: float, nbytes: int) -> Call:
    """The group's latest call, which begins now."""
    now = time.monotonic()
    say_at = now + max(SAY_AT * limit_s, SAY_AFTER_S)
    return Call(words, state, state.calls, limit_s, now + limit_s, say_at, nbytes)


def _signatures(call: Call) -> signatures.Signatures:
    try:
        return _in_store(call, lambda: signatures.of(call.state, call.limit_s))
    except CollectiveTimeout as error:
        _break(call, f"{call.words} timed out in it: {error.why}", error.missing)
        limits.note(call, call.limit_s, call.nbytes, "timeout", absent=True)
        raise CollectiveTimeout(f"{call} at {call.site}", why=error.why, missing=error.missing) from error


def _compare_in_store(call: Call) -> None:
    """Wait until all ranks have written down what they call; those to whom it is not new do so after a second."""
    keys = [call.key(rank) for rank in call.state.ranks]

    def compare() -> None:
        announce(call)
        poll(lambda: call.state.store.check(keys), call)

    _in_store(call, compare)
    if len({each["words"] for each in told(call).values()}) > 1:
        trouble.mismatch(call)


def _in_store(call: Call, meet_there: Callable[[], _T]) -> _T:
    """What the ranks do over the store alone in their first calls, which ends although the store stands still."""
    call.place = call.site  # the thread that asks has another stack
    try:
        return aside(meet_there, max(call.until - time.monotonic(), 0) + _STORE_S)
    except Silent:
        _give_up(call, (), "the job's store, over which ranks meet first, does not answer")


def finish(works: Iterable[dist.Work], call: Call) -> None:
    """Wait until all are over, no longer than the call may last.

    Raises:
        CollectiveTimeout: they are not; it names the ranks that did not come.
        CollectiveFailed: one failed.
    """
    for work in works:
        if not call.state.may_wait_again:
            poll(work.is_completed, call)
            _is_over(work, timedelta(seconds=_TICK_S), call)  # orders the stream, and raises the error that ended it
            continue
        if call.until - time.monotonic() > PRESENT_AFTER_S and _is_over(work, _FIRST, call):
            continue
        _look_around(call)
        while not _is_over(work, timedelta(seconds=max(_slice(call), _TICK_S)), call):
            _look_around(call)
        limits.note(call, call.waited_s, call.nbytes, "well")
    if call.nbytes >= limits.LEAST_MEASURED_BYTES:
        limits.measured(call.state, call.nbytes, call.waited_s)


def meet(call: Call) -> None:
    """Wait for all ranks where nothing is to be moved: one of them may have brought something."""
    finish([call.state.group.allreduce([torch.zeros(1, device=call.state.device)], _SUM)], call)


def poll(ready: Callable[[], bool], call: Call) -> None:
    """Wait until ``ready()`` is true, of which nothing tells us, no longer than the call may last.

    Raises:
        CollectiveTimeout: it is not; it names the ranks that did not come.
    """
    for _ in range(_SPINS):
        if ready():
            return
    began, pause = time.monotonic(), 1e-5
    long = False
    while not ready():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        if time.monotonic() - began > PRESENT_AFTER_S or time.monotonic() > call.until:
            long = True
            _look_around(call)
    if long:
        limits.note(call, call.waited_s, call.nbytes, "well")


def _is_over(work: dist.Work, limit: timedelta, call: Call) -> bool:
    """True where the work is done within the limit, False where it goes on."""
    try:
        work.wait(limit)
    except RuntimeError:
        if not work.is_completed():
            return False
    else:
        return True
    try:
        work.wait(limit)  # it is over: well, if that came just after the limit, or with the error that ended it
    except RuntimeError as error:
        _break(call, f"{call.words} failed in it")
        limits.note(call, call.waited_s, call.nbytes, "failed")
        raise CollectiveFailed(call, why=_first_line(error)) from error
    return True


def _slice(call: Call) -> float:
    """For how many seconds is waited before this rank looks around."""
    now = time.monotonic()
    return min(call.until, call.say_at if call.say_at > now else call.until, now + _LOOK_EVERY_S) - now


def _look_around(call: Call) -> None:
    """Give up where the time is over; raise what others found of this call; say once for whom is waited."""
    left = call.until - time.monotonic()
    over = left < _TICK_S
    call.place = call.site  # looked for here, as the thread that asks has another stack
    try:
        absent = aside(lambda: _ask(call, over=over), _STORE_S if over else min(_STORE_S, max(left, PRESENT_AFTER_S)))
    except Silent:
        if over:
            _give_up(call, (), "the job's store, which knows who came, does not answer")
    except RuntimeError as error:  # of torch's store; ours are none
        call.state.broken = f"the job's store was lost in {call.words}"
        raise CollectiveFailed(call, why=f"the job's store cannot be reached: {_first_line(error)}") from error
    else:
        if over:
            _give_up(call, absent, "all ranks were in it")


def _ask(call: Call, *, over: bool) -> tuple[int, ...]:
    """Say that this rank is here, hear what others found, and who is missing, where that is wanted."""
    announce(call)
    if over:
        return missing(call)
    trouble.look(call)
    if time.monotonic() >= call.say_at:
        call.say_at = float("inf")
        who = say_missing(missing(call))
        _log.warning("still waiting in %s for %s after %s", call, who, duration(call.waited_s))
    return ()


def _give_up(call: Call, absent: tuple[int, ...], otherwise: str) -> NoReturn:
    limit = duration(call.limit_s)
    why = (
        f"{say_missing(absent)} did not come within {limit}"
        if absent
        else f"{otherwise}, and it was not over within {limit}"
    )
    _break(call, f"{call.words} timed out in it: {why}", absent)
    limits.note(call, call.limit_s, call.nbytes, "timeout", absent=bool(absent))
    raise CollectiveTimeout(f"{call} at {call.site}", why=why, missing=absent)


def _break(call: Call, why: str, absent: tuple[int, ...] = ()) -> None:
    """Use the group no more, and tell the others so, if the store is there to tell it."""
    call.state.broken = why
    with suppress(RuntimeError, Silent):
        aside(lambda: trouble.break_group(call, why, absent), _STORE_S)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
