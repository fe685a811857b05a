"""Report the failure of a call on one rank to all ranks of its group, so that none is left waiting.

Waiting ranks read the group's store once a second: ``<call>/failure`` concerns that call alone
(signatures differ, or a rank's tensor was refused); after ``broken``, no call in the group can be
trusted.

``<call>/outcome/<stage>`` decides whether a call timed out: the first rank to write it decides for
all, whether its timeout has expired (:func:`give_up`) or its part has completed
(:func:`claim_completion`). A rank writes a completion only if another one may have given up.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

import torch.distributed as dist

from holdfast.core.errors import CollectiveMismatch, CollectiveTimeout, GroupBroken
from holdfast.core.rank_sets import describe_ranks
from holdfast.training.collectives.call_signatures import CallSignatures
from holdfast.training.collectives.groups.arrivals import (
    BoundedCall,
    announce_arrival,
    announced_calls,
    explain_timeout,
    missing_ranks,
)
from holdfast.training.collectives.groups.group_info import GroupState

#: Ranks that wait in the call announce their signature within this many seconds.
_ANNOUNCED_WITHIN_S = 1.5
_PAUSE_S = 0.05
_MAX_SIGNATURES = 4
_FAILURE, _BROKEN = "failure", "broken"
_COMPLETED = "completed"


def raise_mismatch(call: BoundedCall) -> NoReturn:
    """Report to all ranks of the group that their calls differ; the first report counts.

    Raises:
        CollectiveMismatch: always, with the same text on all ranks.
    """
    announce_arrival(call)
    deadline = time.monotonic() + min(_ANNOUNCED_WITHIN_S, call.limit_s)
    while (
        len(announced := announced_calls(call)) < len(call.state.ranks)
        and time.monotonic() < deadline
    ):
        time.sleep(_PAUSE_S)
    why, odd = _compare_calls(announced)
    report = json.dumps({"why": why, "odd": odd})
    _raise_report(call, call.state.store.compare_set(call.key(_FAILURE), "", report))


def report_refusal(call: BoundedCall, why: str) -> None:
    """Report to ranks that wait, now or later, that this rank does not participate in the call."""
    rank = dist.get_rank()
    report = json.dumps({"why": f"rank {rank} refused it: {why}", "odd": [rank]})
    call.state.store.compare_set(call.key(_FAILURE), "", report)


def find_missing(call: BoundedCall) -> tuple[int, ...]:
    """Return the ranks that are not known to have entered the call."""
    known = call.state.cache.get(CallSignatures)
    entered = known.entered_ranks(call.number) if known is not None else ()
    return tuple(rank for rank in missing_ranks(call) if rank not in entered)


def give_up(call: BoundedCall) -> None:
    """Raise on all ranks that the call timed out; return if one of them has completed this stage.

    Raises:
        CollectiveTimeout: with the same reason and missing ranks on all ranks.
        CollectiveMismatch: the calls of the ranks differ.
    """
    announce_arrival(call)
    missing = find_missing(call)
    why = explain_timeout(missing, call.limit_s)
    outcome = _decide_outcome(call, json.dumps({"why": why, "missing": missing}))
    if outcome != _COMPLETED:
        _raise_timeout(call, outcome)


def claim_completion(call: BoundedCall) -> None:
    """Decide that this stage of the call has completed, unless a rank has given it up before.

    Raises:
        CollectiveTimeout, CollectiveMismatch: a rank has; as :func:`give_up` raises there.
    """
    outcome = _decide_outcome(call, _COMPLETED)
    if outcome != _COMPLETED:
        _raise_timeout(call, outcome)


def _decide_outcome(call: BoundedCall, proposed: str) -> str:
    """Return the outcome that was written first."""
    key = call.key(f"outcome/{call.stage}")
    return bytes(call.state.store.compare_set(key, "", proposed)).decode()


def _raise_timeout(call: BoundedCall, outcome: str) -> NoReturn:
    report = json.loads(outcome)
    text = f"{call.signature} timed out: {report['why']}"
    break_group(call.state, text, call.number, report)
    raise_reported_failure(call)
    raise CollectiveTimeout(f"{call} at {call.site}", why=report["why"], missing=report["missing"])


def break_group(
    state: GroupState, why: str, call_number: int = 0, timeout: Mapping[str, object] | None = None
) -> None:
    """Mark the group as broken on all ranks; ``timeout``: why it expired, and missing ranks."""
    state.broken = why
    report = {"why": f"on rank {dist.get_rank()}: {why}", "call": call_number, "timeout": timeout}
    state.store.compare_set(_BROKEN, "", json.dumps(report))


def raise_reported_failure(call: BoundedCall) -> None:
    """Raise what another rank has reported, if anything.

    Raises:
        CollectiveMismatch: ranks called something else, or do not participate.
        CollectiveTimeout: this call timed out on another rank.
        GroupBroken: another rank broke the group before this call, or in it.
    """
    store = call.state.store
    if store.check([call.key(_FAILURE)]):
        announce_arrival(call)
        _raise_report(call, store.get(call.key(_FAILURE)))
    if store.check([_BROKEN]):
        report = json.loads(store.get(_BROKEN))
        call.state.broken = call.state.broken or report["why"]
        timeout = report["timeout"]
        if timeout and report["call"] == call.number:
            raise CollectiveTimeout(f"{call} at {call.site}", **timeout)
        raise GroupBroken(repr(call.state.name), why=call.state.broken)


def _raise_report(call: BoundedCall, encoded: bytes) -> NoReturn:
    report = json.loads(encoded)
    break_group(call.state, f"call {call.number} was not the same on all ranks", call.number)
    raise CollectiveMismatch(
        f"call {call.number} in group {call.state.name!r}", why=report["why"], odd=report["odd"]
    )


def _compare_calls(announced: Mapping[int, Mapping[str, str]]) -> tuple[str, list[int]]:
    """Return who called what and where, majority first, and the minority; empty if it is a tie."""
    counted = Counter(each["signature"] for each in announced.values()).most_common()
    parts = []
    for signature, _ in counted[:_MAX_SIGNATURES]:
        ranks = [rank for rank, each in announced.items() if each["signature"] == signature]
        parts.append(f"{describe_ranks(ranks)} called {signature} at {announced[ranks[0]]['site']}")
    is_tie = len(counted) > 1 and counted[0][1] == counted[1][1]
    odd = [rank for rank, each in announced.items() if each["signature"] != counted[0][0]]
    return "; ".join(parts), [] if is_tie else odd
