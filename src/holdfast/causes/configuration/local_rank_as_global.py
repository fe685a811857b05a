"""CONF004 local-rank-as-global."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

LOCAL_RANK_AS_GLOBAL = Cause(
    code="CONF004",
    name="local-rank-as-global",
    summary="LOCAL_RANK is used as the global rank: one process on each node acts as rank 0.",
    what_happens="With one node the two numbers are equal, and the program works. On two nodes "
    "two processes write the same checkpoint, create the same folder, log twice, or download "
    "twice into one shared cache.",
    shows_before="A function or variable named main, master or rank zero whose value comes from "
    "LOCAL_RANK.",
    shows_during="Files written by two processes at once, `FileExistsError` on one node, "
    "duplicate log lines.",
    shows_after="The job runs on one node and fails on two, at the first file that it creates.",
    known_misses="Work that is needed once per node (a local cache) correctly uses LOCAL_RANK; "
    "its names mostly say so.",
    evidence_sources=(EvidenceSource.LOG, EvidenceSource.SOURCE),
    signals=(
        LogSignal(
            name="rank-twice",
            tier=Tier.NAMED,
            confidence=0.75,
            sentence="two processes joined with the same rank",
            patterns=(
                r"Bootstrap Root : rank \d+ of \d+ ranks has already checked in",
                r"[Rr]ank \d+ (?:is )?already (?:registered|joined|exists in)",
            ),
            examples=(
                (
                    "n1:5:9 [0] bootstrap.cc:146 NCCL WARN Bootstrap Root : rank 1 of 4 ranks has "
                    "already checked in"
                ),
            ),
        ),
    ),
    remedies=(
        by_hand("Use the global rank: `dist.get_rank() == 0`, or `os.environ['RANK'] == '0'`."),
        by_hand("If once per node is intended, say so in the name: `is_local_main_process`."),
    ),
    sources=("speechbrain/speechbrain#2506", "torchrun: Environment Variables"),
)
