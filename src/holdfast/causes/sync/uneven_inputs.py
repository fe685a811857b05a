"""SYNC003 uneven-inputs."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

UNEVEN_INPUTS = Cause(
    code="SYNC003",
    name="uneven-inputs",
    summary="Ranks had different numbers of batches; the rank with fewer left the loop first.",
    what_happens="Each batch needs a fixed number of collectives, so ranks with more batches wait "
    "in the next gradient all-reduce for a rank that has left the loop. That rank either ends, or "
    "enters whatever follows the loop (a barrier, an evaluation), so that two different "
    "collectives meet.",
    shows_before="A loop over a loader without DistributedSampler, a split by ceil(len/n), "
    "drop_last=False with a remainder, filters that drop samples by content, an iterable dataset "
    "sharded by file.",
    shows_during="One rank's trace file ends with the last collective of the loop and the end of "
    "the script, or it is in a collective whose call site is after the loop in which the others "
    "wait.",
    shows_after="The hang occurs at the end of an epoch, at the same step each time. gloo: "
    "`Connection closed by peer` if the early rank has ended; NCCL: a watchdog timeout on the "
    "ranks with more data. The early rank has exit status 0, so it is not suspected.",
    known_misses="An exception swallowed in the loop also makes a rank reach its end early: if "
    "the source shows a handler around the loop body, rank-skips-collective is named instead. "
    "Without the source file the two cannot be distinguished.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="uneven-said",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="a rank finished its inputs before the others",
            patterns=("at least one rank that exhausted inputs",),
            examples=(
                (
                    "RuntimeError: Detected at least one rank that exhausted inputs. Throwing "
                    "across all ranks."
                ),
            ),
        ),
    ),
    alternatives=("rank-missing-collective", "watchdog-timeout-straggler"),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Give every rank the same number of batches: `DataLoader(..., "
            "sampler=DistributedSampler(dataset, drop_last=True), drop_last=True)`."
        ),
        by_hand(
            "Or let finished ranks shadow the others' collectives (DDP only, not for models "
            "with collectives in forward): `with model.join(): ...`."
        ),
        by_hand(
            "For iterable data agree on the smallest number of batches with one all-reduce "
            "before the loop."
        ),
    ),
    sources=(
        "pytorch/pytorch#38174",
        "pytorch/pytorch#42577",
        "dmlc/dgl#2539",
        "torch: generic Join",
    ),
)
