"""Wait for a collective no longer than its timeout, and determine which ranks are missing.

``work.wait(timeout)`` is torch's own: it needs no thread and no signal, and on gloo it may be
repeated on the same work without harm to the group (measured). On NCCL an expired wait aborts the
communicator, so the work is polled there. A rank that waits longer than a second announces its
arrival in the job's store; a rank without an announcement at the deadline is missing.

All ranks report the same outcome. A rank that times out writes so to the store before it raises. A
rank whose part has completed reads that only if a timeout of another rank may have expired: that
rank entered the call after this one had entered the previous call, because a call completes only
when all ranks are in it. So a call agrees on its outcome if it completes a quarter of its timeout,
or more, after this rank entered the previous call; other calls cost a look at the clock.

:func:`begin_call` counts a call. It may wait for several works in turn (:func:`wait_for_works`, or
:func:`poll_until` for a condition without wake-up), which share its timeout.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from holdfast.core.errors import (
    CollectiveFailed,
    CollectiveTimeout,
    InvalidValue,
    UsageError,
)
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
)
from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.groups.rank_hosts import announce_host, hosts_are_known
from holdfast.training.store_wait import wait_until

_T = TypeVar("_T")
#: A rank announces its arrival after this many seconds, or this share of its timeout. A rank of
#: another host that arrived later than this before the deadline may not have announced itself yet.
ANNOUNCE_AFTER_S, ANNOUNCE_SHARE = 1.0, 0.25
#: The outcome is agreed from this share of the timeout, or from this many seconds, which covers
#: ranks with shorter timeouts.
_AGREE_SHARE, _AGREE_AFTER_S = 0.25, 5.0
#: The log reports a wait after this share of the timeout, but not before this many seconds.
WARN_SHARE, WARN_AFTER_S = 0.1, 10.0
#: The stage of a call in which ranks to which its signature is new wait for all others.
_COMPARISON = -1
#: Larger scratch tensors are not kept: a group may have thousands of kinds of sums.
_MAX_KEPT_BYTES = 16 << 10
#: The shortest further wait. torch treats a timeout below a millisecond as none.
_TICK_S = 0.002
_FIRST_WAIT = timedelta(seconds=ANNOUNCE_AFTER_S)
#: Nothing but the collective happens in the first second of calls with this timeout, or a longer.
LEAST_SIMPLE_S = ANNOUNCE_AFTER_S / ANNOUNCE_SHARE
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
    now = time.monotonic()
    previous_at, state.entered_at = state.entered_at, now
    try:
        limit_s = timeouts.choose_limit(state, nbytes, timeout=timeout)
    except UsageError as error:
        refusal, limit_s = refusal or str(error), _REFUSAL_LIMIT_S
    call = _create_call(state, signature, limit_s, nbytes, (previous_at, now))
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


@dataclass(frozen=True, slots=True)
class SimpleSum:
    """A sum of small tensors of one kind that the group has made before, in one backend call."""

    signature: str
    nbytes: int
    signatures: call_signatures.CallSignatures
    #: Whether that is also the algorithm that ``chunk="auto"`` has chosen.
    is_automatic: bool
    #: The scratch tensor of the last sum, if it is kept: new memory costs 3 us (measured). A call
    #: that does not complete leaves it out.
    scratch: list[torch.Tensor]
    keeps_scratch: bool


def find_simple_sum(
    state: GroupState, signature: str, tensor: torch.Tensor, *, is_automatic: bool
) -> SimpleSum | None:
    """Return the kind of sum for :func:`sum_simply`; None if it needs :func:`begin_call`."""
    known = state.cache.get(call_signatures.CallSignatures)
    if known is None or not known.has_seen(signature) or not state.can_repeat_wait:
        return None
    if timeouts.least_limit() < LEAST_SIMPLE_S:
        return None
    keeps_scratch = tensor.nbytes <= _MAX_KEPT_BYTES and tensor.device.type == "cpu"
    return SimpleSum(signature, tensor.nbytes, known, is_automatic, [], keeps_scratch)


def sum_simply(
    kind: SimpleSum,
    state: GroupState,
    group: dist.ProcessGroup,
    tensor: torch.Tensor,
    timeout: float | None,
) -> None:
    """Sum a contiguous tensor; a ``timeout`` is valid and at least ``LEAST_SIMPLE_S``.

    For one second nothing is prepared that only a longer wait needs. After a collective the
    processor's caches are cold, and touched memory costs more than computation. Raises as
    :func:`begin_call` and :func:`wait_for_works`.
    """
    state.calls += 1
    now = time.monotonic()
    previous_at, state.entered_at = state.entered_at, now
    is_different = kind.signatures.publish_and_compare(state.calls, kind.signature)
    work: dist.Work | None = None
    if not is_different:
        # The operation may write to the scratch tensor after this call has timed out.
        try:
            scratch = kind.scratch.pop().copy_(tensor)
            is_kept = True
        except IndexError:
            scratch = tensor.clone()
            # Inference tensors cannot be written to outside inference mode.
            is_kept = kind.keeps_scratch and not scratch.is_inference()
        work = group.allreduce([scratch], SUM_OPTIONS)
        try:
            work.wait(_FIRST_WAIT)
        except RuntimeError:  # the second has passed, or the call failed
            pass
        else:
            if time.monotonic() - previous_at < ANNOUNCE_AFTER_S:
                tensor.copy_(scratch)
                if is_kept:
                    kind.scratch.append(scratch)
                return
    limit_s = timeouts.choose_limit(state, kind.nbytes, timeout=timeout)
    call = _create_call(state, kind.signature, limit_s, kind.nbytes, (previous_at, now))
    if work is None:
        failures.raise_mismatch(call)
    wait_for_works([work], call)
    tensor.copy_(scratch)


def _create_call(
    state: GroupState, signature: str, limit_s: float, nbytes: int, entered_at: tuple[float, float]
) -> BoundedCall:
    """Return the group's latest call; ``entered_at``: when it and the previous one were entered."""
    previous_at, now = entered_at
    return BoundedCall(
        signature,
        state,
        state.calls,
        limit_s,
        deadline=now + limit_s,
        warn_at=now + max(WARN_SHARE * limit_s, WARN_AFTER_S),
        check_at=now + _announce_after_s(limit_s),
        nbytes=nbytes,
        agree_from=previous_at + min(_AGREE_SHARE * limit_s, _AGREE_AFTER_S),
    )


def _announce_after_s(limit_s: float) -> float:
    return min(ANNOUNCE_AFTER_S, ANNOUNCE_SHARE * limit_s)


def _create_signatures(call: BoundedCall) -> call_signatures.CallSignatures:
    """Exchange hosts with all ranks, and create the memory in which those of one compare calls."""
    state = call.state

    def create() -> call_signatures.CallSignatures:
        announce_arrival(call)
        announce_host(state)
        poll_until(lambda: hosts_are_known(state), call)
        return call_signatures.signatures_of(state, max(call.left_s, call.grace_s))

    return _run_over_store(call, create)


def _compare_over_store(call: BoundedCall) -> None:
    """Wait until all ranks have announced their signature; ranks that know it do after a second."""
    keys = [call.key(rank) for rank in call.state.ranks]
    stage = call.stage

    def compare() -> None:
        announce_arrival(call)
        call.stage = _COMPARISON
        poll_until(lambda: call.state.store.check(keys), call)

    _run_over_store(call, compare)
    call.stage = stage
    if len({each["signature"] for each in announced_calls(call).values()}) > 1:
        failures.raise_mismatch(call)


def _run_over_store(call: BoundedCall, function: Callable[[], _T]) -> _T:
    """Run what the ranks do only over the store, with a limit in case the store is stopped."""
    try:
        return _call_with_site(call, function, max(call.left_s, 0) + call.grace_s)
    except CallTimedOut:
        why = "the job's store, needed for the first call, does not answer"
        raise _time_out(call, why) from None


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
            _poll_until(work.is_completed, call)
            # Orders the CUDA stream, and raises the error that ended the work.
            _is_done(work, timedelta(seconds=_TICK_S), call)
            continue
        first_s = _announce_after_s(call.limit_s)
        first = _FIRST_WAIT if first_s == ANNOUNCE_AFTER_S else timedelta(seconds=first_s)
        if call.left_s > first_s and _is_done(work, first, call):
            continue
        _check_peers(call)
        while not _is_done(work, timedelta(seconds=max(_next_wait_s(call), _TICK_S)), call):
            _check_peers(call)
        timeouts.record_call(call, call.waited_s, "well")
    _finish_stage(call)
    if call.nbytes >= timeouts.MIN_MEASURED_BYTES:
        timeouts.record_bandwidth(call.state, call.nbytes, call.waited_s)


def wait_for_all_ranks(call: BoundedCall) -> None:
    """Wait for all ranks although this one has no data: another rank may have some."""
    empty = torch.zeros(1, device=call.state.device)
    wait_for_works([start_all_reduce(empty, dist.ReduceOp.SUM, call.state)], call)


def wait_for_entries(call: BoundedCall) -> None:
    """Wait until all ranks have entered a call in which some ranks only send.

    Raises:
        CollectiveTimeout, CollectiveFailed: as :func:`wait_for_works`.
    """
    known, ranks = call.state.cache[call_signatures.CallSignatures], set(call.state.ranks)
    if known.covers_group:
        poll_until(lambda: known.entered_ranks(call.number) == ranks, call)
    else:
        wait_for_all_ranks(call)


def poll_until(is_ready: Callable[[], bool], call: BoundedCall) -> None:
    """Poll ``is_ready()`` until it is true, or until the deadline of the call.

    It becomes true on all ranks, and only when all have entered the call.

    Raises:
        CollectiveTimeout: the deadline passed; names the missing ranks.
    """
    _poll_until(is_ready, call)
    _finish_stage(call)


def _poll_until(is_ready: Callable[[], bool], call: BoundedCall) -> None:
    for _ in range(_SPINS):
        if is_ready():
            return
    is_slow = False

    def check_peers() -> None:
        nonlocal is_slow
        now = time.monotonic()
        if now >= call.check_at or call.left_s < _TICK_S:
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
    warn_s = call.warn_at - time.monotonic()
    left_s = call.left_s
    return min(left_s, warn_s if warn_s > 0 else left_s, _CHECK_EVERY_S)


def _check_peers(call: BoundedCall) -> None:
    """Raise a failure that a peer reported, or the timeout; log once which ranks are missing."""
    left_s = call.left_s
    if left_s < _TICK_S:
        _expire(call)
        return
    limit_s = min(_STORE_LIMIT_S, left_s + call.grace_s)
    with suppress(CallTimedOut):
        _query_store(call, lambda: _read_reports(call), limit_s)


def _expire(call: BoundedCall) -> None:
    """Raise the timeout on all ranks; return if another rank has completed the call meanwhile."""
    if call.extension_s:
        raise _time_out(call, "other ranks completed it")
    try:
        _query_store(call, lambda: failures.give_up(call), call.grace_s)
    except CallTimedOut:
        raise _time_out(call, "the job's store, which lists arrivals, does not answer") from None
    call.extension_s = call.grace_s


def _finish_stage(call: BoundedCall) -> None:
    """End a wait in which all ranks participate; agree on its outcome if one may have timed out."""
    if time.monotonic() >= call.agree_from:
        limit_s = max(call.left_s, 0) + call.grace_s
        try:
            _query_store(call, lambda: failures.claim_completion(call), limit_s)
        except CallTimedOut:
            why = "the job's store, which has the outcome on the other ranks, does not answer"
            raise _time_out(call, why) from None
    call.stage += 1


def _query_store(call: BoundedCall, function: Callable[[], None], limit_s: float) -> None:
    """Run a query of the store; its failures are errors of the call. Raises CallTimedOut."""
    try:
        _call_with_site(call, function, limit_s)
    except CollectiveTimeout as error:
        timeouts.record_call(call, call.limit_s, "timeout", absent=bool(error.missing))
        raise
    except RuntimeError as error:  # torch's store raises these; our own errors are none
        call.state.broken = f"the job's store was lost in {call.signature}"
        raise CollectiveFailed(
            call, why=f"the job's store cannot be reached: {first_line(error)}"
        ) from error


def _read_reports(call: BoundedCall) -> None:
    """Announce this rank, raise reported failures, and log which ranks are missing."""
    announce_arrival(call)
    failures.raise_reported_failure(call)
    if time.monotonic() >= call.warn_at:
        call.warn_at = math.inf
        missing = failures.find_missing(call)
        _log.warning(
            "still waiting in %s after %s: %s",
            call,
            format_duration(call.waited_s),
            f"{describe_ranks(missing)} missing" if missing else "all ranks entered it",
        )


def _time_out(call: BoundedCall, reason: str) -> CollectiveTimeout:
    """Break the group, and return the error of a call whose outcome the ranks cannot agree on."""
    why = f"{reason}, and it did not finish within {format_duration(call.limit_s)}"
    _break_group(call, f"{call.signature} timed out: {why}")
    timeouts.record_call(call, call.limit_s, "timeout")
    return CollectiveTimeout(f"{call} at {call.site}", why=why)


def _break_group(call: BoundedCall, why: str) -> None:
    """Mark the group as broken, on all ranks if the store answers."""
    call.state.broken = why
    with suppress(RuntimeError, CallTimedOut):
        call_with_timeout(lambda: failures.break_group(call.state, why, call.number), call.grace_s)
