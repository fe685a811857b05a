"""NUM002 silent-corruption-by-misaligned-collectives."""

from __future__ import annotations

from holdfast.causes.remedies import COMPARE_SEQUENCES, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

SILENT_CORRUPTION_BY_MISALIGNED_COLLECTIVES = Cause(
    code="NUM002",
    name="silent-corruption-by-misaligned-collectives",
    summary="Ranks matched collectives that do not belong together, and got wrong values without "
    "an error.",
    what_happens="Backends match calls by their number in the group and do not compare them. If a "
    "rank is one behind and the next call has the same size, its gradients are added to another "
    "step's; SUM meets MAX; int32 meets float32; 4 elements meet 5. gloo on torch 2.13 returned "
    "wrong sums in each of these, and training continued.",
    shows_before="Any reason for ranks to diverge: exceptions swallowed in the loop, collectives "
    "under conditions on local data, reduce operations chosen at run time.",
    shows_during="The trace files show calls at one sequence whose call sites, sizes or types "
    "differ although both completed. Nothing hangs, so nothing draws attention to it.",
    shows_after="A loss that degrades from one step on, replicas that differ, and perhaps a "
    "timeout at the end of the epoch, when one rank has a call left over.",
    known_misses="The watcher compares the ranks when the job hangs or dies, not while it runs "
    "well. Calls with equal signature and line cannot be distinguished.",
    evidence_sources=(EvidenceSource.TRACE,),
    remedies=(
        COMPARE_SEQUENCES,
        by_hand(
            "Compare the parameters of all ranks now and then: `dist.all_gather_object(sums, "
            "[float(p.sum()) for p in model.parameters()])`."
        ),
        disruptive(
            "Go back to a checkpoint from before the ranks diverged; later ones contain the damage."
        ),
    ),
    sources=("torch 2.13.0 with gloo, measured", "NVIDIA-NeMo/Automodel#2468"),
)
