"""Wait for a collective no longer than its timeout, and determine which ranks are missing.

``work.wait(timeout)`` is torch's own: it needs no thread and no signal, and on gloo it may be
repeated on the same work without harm to the group (measured). On NCCL an expired wait aborts the
communicator, so the work is polled there. A rank that waits longer than a second announces its
arrival in the job's store; a rank without an announcement at the deadline is missing.

:func:`begin_call` counts a call. It may wait for several works in turn (:func:`wait_for_works`, or
:func:`poll_until` for a condition without wake-up), which share its timeout.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist

from holdfast.core.errors import CollectiveFailed, CollectiveTimeout, InvalidValue, UsageError
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.text import format_duration
from holdfast.training.collectives import call_signatures, failures, timeouts
from holdfast.training.collectives.backend_calls import SUM_OPTIONS, start_all_reduce
from holdfast.training.collectives.call_text import first_line
from holdfast.training.collectives.call_with_timeout import CallTimedOut, call_with_timeout
from holdfast.training.collectives.groups.arrivals import (
    BoundedCall,
    announce_arrival,
    announced_calls,
    arrival_timeout,
    missing_ranks,
)
from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.store_wait import wait_until

_T = TypeVar("_T")
#: A rank announces its arrival after this many seconds. A rank that arrived later than this before
#: the deadline may not have announced itself yet.
ANNOUNCE_AFTER_S = 1.0
#: The log reports a wait after this share of the timeout, but not before this many seconds.
WARN_SHARE, WARN_AFTER_S = 0.1, 10.0
#: The shortest further wait. torch treats a timeout below a millisecond as none.
_TICK_S = 0.002
_FIRST_WAIT = timedelta(seconds=ANNOUNCE_AFTER_S)
#: Timeout of a query of the store, whose process may be stopped.
_STORE_LIMIT_S = 5.0
#: Timeout of a call whose own timeout is invalid: meanwhile peers learn of the refusal.
_REFUSAL_LIMIT_S = 60.0
#: Interval at which a waiting rank reads what others have reported.
_CHECK_EVERY_S = 1.0
#: Polls without a pause (about 50 us), then with pauses that grow between these bounds.
_SPINS, _MIN_PAUSE_S, _MAX_PAUSE_S = 200, 1e-5, 0.002

_log = logging.getLogger("holdfast.comm")


def begin_call(
    state: GroupState,
    signature: str,
    timeout: float | str | None,
    *,
    nbytes: int = 0,
    refusal: str = "",
) -> BoundedCall:
    """Count a call of this group; all its ranks make the same calls in the same order.

    ``signature`` must be equal on all ranks: different calls are detected by it before any data
    move. ``timeout`` is the user's, None for what the policy chooses for ``nbytes``. ``refusal``
    says why this rank's tensor is refused.

    Raises:
        InvalidValue: there is a ``refusal``; ranks whose own call is valid get CollectiveMismatch.
        CollectiveMismatch: another rank makes a different call. All ranks of the group raise it.
    """
    state.calls += 1
    try:
        limit_s = timeouts.choose_limit(state, nbytes, timeout=timeout)
    except UsageError as error:
        refusal, limit_s = refusal or str(error), _REFUSAL_LIMIT_S
    call = _create_call(state, signature, limit_s, nbytes)
    known = state.cache.get(call_signatures.CallSignatures) or _create_signatures(call)
    is_new = not known.covers_group and not known.has_seen(signature)
    if refusal:
        call.signature += f" (refused: {refusal})"
    if known.publish_and_compare(call.number, call.signature) and not refusal:
        failures.raise_mismatch(call)
    if refusal:
        failures.report_refusal(call, refusal)
        raise InvalidValue(signature.partition(" of ")[0], why=refusal)
    if is_new:
        _compare_over_store(call)
    return call


def try_small_sum(
    state: GroupState,
    signature: str,
    timeout: float | str | None,
    nbytes: int,
    tensor: torch.Tensor,
) -> bool:
    """Sum a tensor as before in this group; return False if the call needs :func:`begin_call`.

    For small tensors: for one second nothing is prepared that only a longer wait needs. After a
    collective the processor's caches are cold, and touched memory costs more than computation.
    ``timeout`` is at least a second. Raises as :func:`begin_call` and :func:`wait_for_works`.
    """
    known = state.cache.get(call_signatures.CallSignatures)
    if known is None or not known.has_seen(signature) or not state.can_repeat_wait:
        return False
    state.calls += 1
    if known.publish_and_compare(state.calls, signature):
        limit_s = timeouts.choose_limit(state, nbytes, timeout=timeout)
        failures.raise_mismatch(_create_call(state, signature, limit_s, nbytes))
    scratch = tensor.clone()  # the operation may write to it after this call has timed out
    work = state.group.allreduce([scratch], SUM_OPTIONS)
    try:
        work.wait(_FIRST_WAIT)
    except RuntimeError:
        limit_s = timeouts.choose_limit(state, nbytes, timeout=timeout)
        call = _create_call(state, signature, limit_s, nbytes)
        call.deadline -= ANNOUNCE_AFTER_S
        wait_for_works([work], call)
    tensor.copy_(scratch)
    return True


def _create_call(state: GroupState, signature: str, limit_s: float, nbytes: int) -> BoundedCall:
    """Return the group's latest call, which begins now."""
    now = time.monotonic()
    warn_at = now + max(WARN_SHARE * limit_s, WARN_AFTER_S)
    check_at = now + ANNOUNCE_AFTER_S
    return BoundedCall(
        signature, state, state.calls, limit_s, now + limit_s, warn_at, check_at, nbytes
    )


def _create_signatures(call: BoundedCall) -> call_signatures.CallSignatures:
    try:
        return _run_over_store(
            call, lambda: call_signatures.signatures_of(call.state, call.limit_s)
        )
    except CollectiveTimeout as error:
        _break_group(call, f"{call.signature} timed out: {error.why}", error.missing)
        timeouts.record_call(call, call.limit_s, "timeout", absent=True)
        raise CollectiveTimeout(
            f"{call} at {call.site}", why=error.why, missing=error.missing
        ) from error


def _compare_over_store(call: BoundedCall) -> None:
    """Wait until all ranks have announced their signature; ranks that know it do after a second."""
    keys = [call.key(rank) for rank in call.state.ranks]

    def compare() -> None:
        announce_arrival(call)
        poll_until(lambda: call.state.store.check(keys), call)

    _run_over_store(call, compare)
    if len({each["signature"] for each in announced_calls(call).values()}) > 1:
        failures.raise_mismatch(call)


def _run_over_store(call: BoundedCall, function: Callable[[], _T]) -> _T:
    """Run what the ranks do only over the store, with a limit in case the store is stopped."""
    limit_s = max(call.deadline - time.monotonic(), 0) + _STORE_LIMIT_S
    try:
        return _call_with_site(call, function, limit_s)
    except CallTimedOut:
        _raise_timeout(call, (), "the job's store, needed for the first call, does not answer")


def _call_with_site(call: BoundedCall, function: Callable[[], _T], limit_s: float) -> _T:
    call.known_site = call.site  # the thread has another stack
    return call_with_timeout(function, limit_s)


def wait_for_works(works: Iterable[dist.Work], call: BoundedCall) -> None:
    """Wait for each work in turn, until the deadline of the call.

    Raises:
        CollectiveTimeout: the deadline passed; names the missing ranks.
        CollectiveFailed: a work failed.
    """
    for work in works:
        if not call.state.can_repeat_wait:
            poll_until(work.is_completed, call)
            # Orders the CUDA stream, and raises the error that ended the work.
            _is_done(work, timedelta(seconds=_TICK_S), call)
            continue
        if call.deadline - time.monotonic() > ANNOUNCE_AFTER_S and _is_done(
            work, _FIRST_WAIT, call
        ):
            continue
        _check_peers(call)
        while not _is_done(work, timedelta(seconds=max(_next_wait_s(call), _TICK_S)), call):
            _check_peers(call)
        timeouts.record_call(call, call.waited_s, "well")
    if call.nbytes >= timeouts.MIN_MEASURED_BYTES:
        timeouts.record_bandwidth(call.state, call.nbytes, call.waited_s)


def wait_for_all_ranks(call: BoundedCall) -> None:
    """Wait for all ranks although this one has no data: another rank may have some."""
    empty = torch.zeros(1, device=call.state.device)
    wait_for_works([start_all_reduce(empty, dist.ReduceOp.SUM, call.state)], call)


def poll_until(is_ready: Callable[[], bool], call: BoundedCall) -> None:
    """Poll ``is_ready()`` until it is true, or until the deadline of the call.

    Raises:
        CollectiveTimeout: the deadline passed; names the missing ranks.
    """
    for _ in range(_SPINS):
        if is_ready():
            return
    is_slow = False

    def check_peers() -> None:
        nonlocal is_slow
        now = time.monotonic()
        if now >= call.check_at or now > call.deadline:
            is_slow = True
            call.check_at = now + _CHECK_EVERY_S
            _check_peers(call)

    wait_until(
        is_ready,
        math.inf,
        check_abort=check_peers,
        min_pause_s=_MIN_PAUSE_S,
        max_pause_s=_MAX_PAUSE_S,
    )
    if is_slow:
        timeouts.record_call(call, call.waited_s, "well")


def _is_done(work: dist.Work, limit: timedelta, call: BoundedCall) -> bool:
    """Return whether the work completed within the limit.

    Raises:
        CollectiveFailed: it failed.
    """
    try:
        work.wait(limit)
    except RuntimeError:
        if not work.is_completed():
            return False
    else:
        return True
    try:
        work.wait(limit)  # it completed just after the limit, or with the error raised here again
    except RuntimeError as error:
        _break_group(call, f"{call.signature} failed")
        timeouts.record_call(call, call.waited_s, "failed")
        raise CollectiveFailed(call, why=first_line(error)) from error
    return True


def _next_wait_s(call: BoundedCall) -> float:
    """Return the seconds until this rank next checks its peers, or the deadline."""
    now = time.monotonic()
    warn_at = call.warn_at if call.warn_at > now else call.deadline
    return min(call.deadline, warn_at, now + _CHECK_EVERY_S) - now


def _check_peers(call: BoundedCall) -> None:
    """Raise a failure that a peer reported, or the timeout; log once which ranks are missing."""
    left_s = call.deadline - time.monotonic()
    expired = left_s < _TICK_S
    limit_s = _STORE_LIMIT_S if expired else min(_STORE_LIMIT_S, max(left_s, ANNOUNCE_AFTER_S))
    try:
        missing = _call_with_site(call, lambda: _query_store(call, expired=expired), limit_s)
    except CallTimedOut:
        if expired:
            _raise_timeout(call, (), "the job's store, which lists arrivals, does not answer")
    except RuntimeError as error:  # torch's store raises these; our own errors are none
        call.state.broken = f"the job's store was lost in {call.signature}"
        raise CollectiveFailed(
            call, why=f"the job's store cannot be reached: {first_line(error)}"
        ) from error
    else:
        if expired:
            _raise_timeout(call, missing, "all ranks entered it")


def _query_store(call: BoundedCall, *, expired: bool) -> tuple[int, ...]:
    """Announce this rank and raise reported failures; return the missing ranks if ``expired``."""
    announce_arrival(call)
    if expired:
        return missing_ranks(call)
    failures.raise_reported_failure(call)
    if time.monotonic() >= call.warn_at:
        call.warn_at = math.inf
        missing = missing_ranks(call)
        _log.warning(
            "still waiting in %s after %s: %s",
            call,
            format_duration(call.waited_s),
            f"{describe_ranks(missing)} missing" if missing else "all ranks entered it",
        )
    return ()


def _raise_timeout(call: BoundedCall, missing: tuple[int, ...], reason: str) -> NoReturn:
    """Break the group and raise; ``reason`` says what is known if no rank is missing."""
    subject = f"{call} at {call.site}"
    if missing:
        error = arrival_timeout(subject, missing, call.limit_s)
    else:
        why = f"{reason}, and it did not finish within {format_duration(call.limit_s)}"
        error = CollectiveTimeout(subject, why=why)
    _break_group(call, f"{call.signature} timed out: {error.why}", missing)
    timeouts.record_call(call, call.limit_s, "timeout", absent=bool(missing))
    raise error


def _break_group(call: BoundedCall, why: str, missing: tuple[int, ...] = ()) -> None:
    """Mark the group as broken, on all ranks if the store answers."""
    call.state.broken = why
    with suppress(RuntimeError, CallTimedOut):
        call_with_timeout(
            lambda: failures.break_group(call.state, why, call.number, missing), _STORE_LIMIT_S
        )
