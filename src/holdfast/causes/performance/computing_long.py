"""PERF002 computing-long."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

COMPUTING_LONG = Cause(
    code="PERF002",
    name="computing-long",
    summary="A rank computes outside of collectives for a long time, while the others wait.",
    what_happens="The rank uses CPU: it tokenizes, sorts, compiles, builds an index, or runs an "
    "endless loop. The others are in the next collective. If the work ends, the job continues; "
    "whether it will end cannot be known.",
    shows_before="Heavy work on one rank between two collectives; the first step with "
    "torch.compile; datasets that are prepared on first use.",
    shows_during="The process uses a core or more, its stack changes between samples, or stays "
    "inside one native call that uses CPU. holdfast suspects it after 30 s and keeps "
    "waiting. After five times --act-after (300 s by default; 30 min before the first step) it "
    "acts on a hang, unless a phase was declared or the stack shows one.",
    shows_after="Nothing, if it ended in time. Otherwise a timeout on the others, without the "
    "reason.",
    known_misses="Whether the work would have ended is unknown: a pause of the same job that "
    "ended before raises the limit to three times its length. A rank that no other waits for is "
    "never reported.",
    evidence_sources=(EvidenceSource.TRACE,),
    may_recover=True,
    remedies=(
        automatic("Show what it computes.", "py-spy dump --nonblocking --pid PID"),
        by_hand(
            "If it is expected to take long, declare a budget: `with holdfast.phase('index', "
            "budget='1h'): ...`."
        ),
        by_hand("Do the work before the job, or divide it between all ranks."),
    ),
    sources=("pytorch/pytorch#46076", "intelligent-machine-learning/dlrover#1727"),
)
