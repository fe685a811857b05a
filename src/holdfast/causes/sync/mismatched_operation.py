"""SYNC009 mismatched-operation."""

from __future__ import annotations

from holdfast.causes.remedies import COMPARE_SEQUENCES, RESTART, SAME_LINE, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

MISMATCHED_OPERATION = Cause(
    code="SYNC009",
    name="mismatched-operation",
    summary="Ranks entered different operations at the same position of the group's sequence.",
    what_happens="One rank broadcasts while the others all-reduce: code paths that differ by rank "
    "or by data, or a call in an exception handler. The backend matches calls by number: NCCL "
    "hangs, gloo hangs until the timeout or mixes the bytes.",
    shows_before="Branches whose two sides call different collectives; a collective in an except "
    "or finally block.",
    shows_during="At one (group, sequence) the minority's operation differs, and neither a test "
    "of the rank, nor a shift by one, nor a loop that was left explains it.",
    shows_after="A timeout on all ranks; NCCL's lines show different OpType at one SeqNum. "
    "torch's analyzer calls every rank that differs from the first file `culprit`, which may be "
    "all others.",
    known_misses="SUM on one rank and MAX on another is the same operation to the backend: no "
    "error, no hang, wrong values. With two ranks there is no majority: both sides are shown, and "
    "the verdict reports a tie.",
    evidence_sources=(EvidenceSource.TRACE,),
    treatment=Treatment.CODE,
    remedies=(
        SAME_LINE,
        by_hand(
            "Call the same collectives in both branches, or decide on one rank and broadcast "
            "the decision."
        ),
        COMPARE_SEQUENCES,
        RESTART,
    ),
    sources=("mosaicml/composer#2117", "torch: torch/distributed/flight_recorder"),
)
