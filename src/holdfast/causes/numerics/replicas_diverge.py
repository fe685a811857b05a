"""NUM003 replicas-diverge."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

REPLICAS_DIVERGE = Cause(
    code="NUM003",
    name="replicas-diverge",
    summary="Ranks that should have equal state (parameters, scale, step count, learning rate) no "
    "longer do.",
    what_happens="State is updated from local data: a scaler that finds overflow on one rank, a "
    "schedule driven by the local loader, buffers that are not broadcast, a random generator used "
    "for the model, a damaged value from one device. No collective fails; each rank trains a "
    "slightly different model.",
    shows_before="Decisions from local values that are not reduced; gradients unscaled or checked "
    "before they are averaged; parameters changed outside the wrapper.",
    shows_during="Nothing, until a decision based on that state makes ranks diverge: then one of "
    "the SYNC causes is named, with this one behind it.",
    shows_after="Checkpoints of two ranks that differ; an evaluation that depends on the rank; a "
    "jump of the loss on resume.",
    known_misses="holdfast does not compare values; only the program, or a comparison of two "
    "checkpoints, can.",
    evidence_sources=(EvidenceSource.LOG, EvidenceSource.SOURCE),
    signals=(
        LogSignal(
            name="replicas-differ",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="the program found different state on ranks that should have the same",
            patterns=(
                (
                    r"(?:parameters|weights|replicas|model state|optimizer state|buffers)s? "
                    r".{0,40}(?:not (?:identical|equal|the same|in sync)|differ|diverged?"
                    r"|out of sync).{0,60}\b(?:ranks?|replicas|workers|processes)\b"
                ),
                (
                    r"(?:[Pp]aram(?:eter)?|[Ww]eight|[Gg]radient|[Mm]odel|[Ss]tate)s? "
                    r"(?:hash(?:es)?|checksums?) .{0,40}(?:not match|mismatch|differ).{0,60}\b"
                    r"(?:ranks?|replicas|workers|processes)\b"
                ),
                (
                    "(?:[Rr]eplicas|[Dd]ata.parallel ranks) (?:have |are )?(?:diverged|out of sync"
                    "|not in sync|differ)"
                ),
            ),
            examples=(
                (
                    "AssertionError: model parameters are not identical across data parallel "
                    "replicas (rank 2 differs)"
                ),
                "[rank0]: RuntimeError: replicas have diverged: checksum 41aa on rank 0, 93bc on 2",
                "AssertionError: Parameter hashes not matching across DP replicas",
            ),
            counter_examples=(
                "checked parameters: no difference between ranks",
                "replica check: parameters are identical on all ranks",
            ),
        ),
    ),
    treatment=Treatment.NUMERICS,
    remedies=(
        by_hand(
            "Compare a checksum of the state over the ranks every few steps: "
            "`dist.all_gather_object(sums, [float(p.sum()) for p in model.parameters()])`."
        ),
        disruptive(
            "After fixing the reason, set all ranks to one state again: `for p in "
            "model.parameters(): dist.broadcast(p.data, src=0)`."
        ),
    ),
    sources=("pytorch/pytorch#136009", "karpathy/nanochat#857", "dylanyunlon/Neuron_SP#2"),
)
