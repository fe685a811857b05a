"""SYNC010 new-group-by-some-ranks."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

NEW_GROUP_BY_SOME_RANKS = Cause(
    code="SYNC010",
    name="new-group-by-some-ranks",
    summary="new_group() was called by some ranks only, or in another order than on the others.",
    what_happens="Every rank of the job must call new_group() for every group, member or not, in "
    "the same order. Calls are numbered, and the number is part of the store's keys: a rank that "
    "creates only its own group waits for members that never join, or pairs its first group with "
    "another rank's second.",
    shows_before="new_group() under a test of the rank, or in a loop that skips groups of which "
    "the rank is not a member.",
    shows_during="Some ranks are inside new_group, waiting in the store; the others are past it, "
    "in an ordinary collective. The trace file has the entry into new_group with its line.",
    shows_after="`wait timeout after ...ms, keys: /default_pg/0//...` on the callers, a "
    "collective's timeout on the others. new_group ignores the default group's timeout: by "
    "default this takes 30 minutes with gloo, whatever the timeout of init_process_group.",
    known_misses="A group of the caller alone completes; only the next new_group, whose number "
    "then differs, hangs. With NCCL, groups are created lazily: the wait moves to the first "
    "collective in them, and rank-missing-collective may be named.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="group-barrier-timeout",
            tier=Tier.NETWORK,
            confidence=0.75,
            sentence="a process group after the first was created by some ranks only",
            patterns=(
                r"store_based_barrier_key:(?:[2-9]|\d{2,}) \(world_size=\d+, worker_count=\d",
            ),
            examples=(
                (
                    "[rank0]: RuntimeError: Timed out initializing process group in store based "
                    "barrier on rank: 0, for key: store_based_barrier_key:3 (world_size=8, "
                    "worker_count=4, timeout=0:30:00)"
                ),
            ),
            precedence=-1,
        ),
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Call new_group on all ranks, for all groups, in the same order; keep the one that "
            "this rank belongs to: `groups = [dist.new_group(members) for members in all_members]`."
        ),
        by_hand(
            "Or let only the members call it, all of them: `dist.new_group(members, "
            "use_local_synchronization=True)`."
        ),
        by_hand(
            "Pass timeout=... to each new_group; it does not inherit the default group's timeout."
        ),
    ),
    sources=("pytorch/pytorch#25390", "torch.distributed.new_group"),
)
