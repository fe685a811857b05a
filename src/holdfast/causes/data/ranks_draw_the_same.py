"""DATA007 ranks-draw-the-same."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

RANKS_DRAW_THE_SAME = Cause(
    code="DATA007",
    name="ranks-draw-the-same",
    summary="All ranks draw the same random numbers where each should draw different ones.",
    what_happens="Every process seeds its generator with the same number, so sampled images, "
    "noise or rollouts are identical on all ranks, and the work is duplicated. The gathered "
    "result has as many copies of each as there are ranks.",
    shows_before="`torch.manual_seed(seed)` without the rank in it, followed by torch.randn or "
    "similar whose value is gathered.",
    shows_during="Nothing stops. Samples of two ranks are equal.",
    shows_after="A set of samples that contains each one world-size times, and metrics (FID, "
    "diversity, variance) that are worse than with one process.",
    known_misses="Weights must be drawn from the same seed unless they are broadcast: seed again, "
    "with the rank, after the model is created.",
    evidence_sources=(EvidenceSource.SOURCE,),
    remedies=(
        by_hand("After the model is created: `torch.manual_seed(seed + dist.get_rank())`."),
        by_hand(
            "Or use a separate generator: `torch.randn(size, "
            "generator=torch.Generator().manual_seed(seed + rank))`."
        ),
    ),
    sources=("torch.manual_seed", "facebookresearch/DiT: sample_ddp.py"),
)
