"""Explains groups that not all ranks create, or that ranks create with other members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from holdfast.causes.sync.new_group_by_some_ranks import NEW_GROUP_BY_SOME_RANKS
from holdfast.core.findings import Fact, Finding, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import ProcessGroupInfo, RecordedCall
from holdfast.watcher.rules import call_divergence
from holdfast.watcher.rules.call_sites import rank_guard
from holdfast.watcher.rules.hang_case import HangCase, line_text
from holdfast.watcher.rules.subjects import rank_subject

#: The group of the calls of ``dist.new_group``, which are counted as torch counts them.
NEW_GROUP = "new_group"
_MAX_SHOWN = 4


def explain_uncalled(case: HangCase) -> list[Finding]:
    """Explain a ``new_group`` that some ranks never call.

    The numbers of the calls do not show which one that is: a rank without it is in a later one.
    """
    for wait in case.graph.waits:
        group = wait.operation.group
        absent = [case.ranks[rank] for rank in wait.awaited if rank in case.ranks]
        if group.startswith(NEW_GROUP) and any(state.pending or state.ended for state in absent):
            own = call_divergence.first_own_call(list(case.ranks.values()), group)
            call, makers, others = own or (wait.operation, wait.waiters, wait.awaited)
            return [_explain_call(case, call, makers, others)]
    return []


def explain_other_members(case: HangCase) -> list[Finding]:
    """Explain a call that all members entered, in a group that other ranks created differently.

    A call that a member did not enter waits for that member instead. torch names groups by the
    number of ``new_group`` calls, so that groups of one name share the keys in the store through
    which their members find each other (``_process_group_name`` in
    torch/distributed/distributed_c10d.py).
    """
    waited = {wait.operation.group for wait in case.graph.waits if not wait.awaited}
    for name, same_name in groups_of_one_name(case.groups).items():
        stuck = [group for group in same_name if group.name in waited]
        if not stuck or not name.isdigit():
            continue
        calls = {
            state.rank: call
            for state in case.ranks.values()
            for call in state.recent
            if call.group == NEW_GROUP and call.sequence == int(name)
        }
        rank = next((rank for rank in stuck[0].ranks or () if rank in calls), None)
        if rank is None:
            return []
        message = (
            f"ranks call new_group{line_text(calls[rank])} with different members "
            f"({members_text(same_name)}): every rank must create every group, in the same order"
        )
        fact = Fact(
            text=f"group {name!r}: {members_text(same_name)}", origin="traces of these ranks"
        )
        subject = rank_subject(rank, case.ranks[rank].host or None, calls[rank].site)
        return [
            make_finding(
                NEW_GROUP_BY_SOME_RANKS, message, subject=subject, evidence=(fact,), confidence=0.9
            )
        ]
    return []


def groups_of_one_name(
    groups: Mapping[str, ProcessGroupInfo],
) -> dict[str, list[ProcessGroupInfo]]:
    """Return the groups that ranks created under one name with different members, by name.

    ``job_summary.agree_on_groups`` appends the members to such names.
    """
    by_name: dict[str, list[ProcessGroupInfo]] = defaultdict(list)
    for group in groups.values():
        by_name[group.name.partition(" of (")[0]].append(group)
    return {name: found for name, found in by_name.items() if len(found) > 1}


def members_text(groups: Sequence[ProcessGroupInfo]) -> str:
    """Return the members of the groups: ``[0, 1] and [2, 3]``."""
    return " and ".join(f"{list(group.ranks or ())}" for group in groups[:_MAX_SHOWN])


def _explain_call(
    case: HangCase, call: RecordedCall, makers: Sequence[int], others: Sequence[int]
) -> Finding:
    """Return the finding about a ``new_group`` that only its ``makers`` call."""
    first = makers[0]
    guarded = rank_guard(call, None, case.source)
    under = f", under {guarded[0].text!r}" if guarded else ""
    calls = "calls" if len(makers) == 1 else "call"
    does = "does" if len(others) == 1 else "do"
    message = (
        f"{describe_ranks(makers)} {calls} new_group{line_text(call)}{under}; "
        f"{describe_ranks(others)} never {does}"
    )
    state = "waiting in the store" if call.completed is None else "completed"
    fact = Fact(
        text=f"new_group{line_text(call)}, {state}",
        origin=f"trace of rank {first}",
        rank=first,
        time=call.entered,
    )
    rank = first if len(makers) <= len(others) else others[0]
    host = case.ranks[rank].host if rank in case.ranks else None
    return make_finding(
        NEW_GROUP_BY_SOME_RANKS,
        message,
        subject=rank_subject(rank, host, call.site),
        evidence=(fact,),
        confidence=0.95,
    )
