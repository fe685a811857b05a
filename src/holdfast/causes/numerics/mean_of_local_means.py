"""NUM007 mean-of-local-means."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

MEAN_OF_LOCAL_MEANS = Cause(
    code="NUM007",
    name="mean-of-local-means",
    summary="A metric is the mean of the ranks' means, although ranks counted different numbers "
    "of samples.",
    what_happens="Each rank divides its sum by its own count (non-padding tokens, samples that "
    "passed a filter), and the quotients are summed and divided by the number of ranks. A rank "
    "with ten samples weighs as much as one with a thousand. The result depends on how the data "
    "was distributed to the ranks.",
    shows_before="A division by a local count before all_reduce, and one by the world size after "
    "it.",
    shows_during="Nothing.",
    shows_after="The metric changes with the number of ranks, or differs from that of one process "
    "on the same data.",
    known_misses="If all counts are equal the two results are equal, and for a logged number an "
    "approximation may suffice.",
    evidence_sources=(EvidenceSource.SOURCE,),
    treatment=Treatment.NUMERICS,
    remedies=(
        by_hand(
            "Reduce the sum and the count, and divide afterwards: `pair = "
            "torch.stack([total, count]); dist.all_reduce(pair); mean = pair[0] / pair[1]`."
        ),
    ),
    sources=("verl-project/verl#1508", "modelscope/ms-swift#10088"),
)
