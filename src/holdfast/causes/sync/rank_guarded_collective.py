"""SYNC004 rank-guarded-collective."""

from __future__ import annotations

from holdfast.causes.remedies import COMPARE_SEQUENCES, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

RANK_GUARDED_COLLECTIVE = Cause(
    code="SYNC004",
    name="rank-guarded-collective",
    summary="Only some ranks reach a collective, because of a condition on the rank.",
    what_happens="Code under `if rank == 0:` (validate, log, save, download) contains a "
    "collective, directly or inside a library: a broadcast, a metric's compute(), the state dict "
    "of a sharded model, the forward pass of a wrapped model. The guarded rank waits there; the "
    "others continue and wait in the next collective. Both sides wait until the timeout, or, if "
    "the two calls happen to match, exchange each other's data.",
    shows_before="In the source: a collective, or a call that contains one, inside a branch on "
    "get_rank(), RANK, is_main_process or similar, without a matching call on the other side.",
    shows_during="At one sequence of the group the trace files show two different calls, and the "
    "minority's call site is inside a test of the rank. The verdict quotes that test.",
    shows_after="A timeout on all ranks, with different operations at the same sequence number; "
    "often after a save or an evaluation. Logs name rank 0 as missing and the other ranks as "
    "failed.",
    known_misses="The test is found by reading the source around the call site: a condition in a "
    "distant caller, in a decorator or in a value such as self.should_log is not found, and "
    "mismatched-operation is named. If the guarded call has the same signature as the others' "
    "next one, nothing stops: see silent-corruption-by-misaligned-collectives.",
    evidence_sources=(
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
        EvidenceSource.SOURCE,
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Move the collective out of the branch: all ranks call it, only rank 0 uses the result."
        ),
        by_hand(
            "On rank 0 use the unwrapped model, whose forward pass has no collective (DDP; "
            "not FSDP): `model.module(batch)`."
        ),
        by_hand(
            "When saving a sharded model, call the save on every rank; the library lets one "
            "rank write."
        ),
        COMPARE_SEQUENCES,
    ),
    sources=(
        "huggingface/trl#1103",
        "pytorch/pytorch#73383",
        "deepspeedai/DeepSpeed#797",
        "neuralmagic/sparseml#1246",
    ),
)
