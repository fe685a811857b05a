"""The mean of ranks' own means, where their counts differ."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "mean"


def _says(parting: Parting) -> str:
    return (
        f"`{parting.text}` was divided by this rank's own count at {short(parting.guard)}, and its sum over ranks is "
        "divided by their number: ranks with few samples weigh as much as others"
    )


RULE = Rule(
    name="mean-of-local-means",
    cause=by_name("mean-of-local-means"),
    tier=Tier.ADVICE,
    what_it_does="Finds metrics that are divided by a number which each rank counted for itself (of what passes a "
    "comparison or a mask), then all-reduced and divided by the number of ranks: in one function, in one that "
    "another gives the mean to, or with a mean that another function or method gives.",
    known_misses="Through more functions than two. Counts of whole batches are the same on all ranks under a "
    "DistributedSampler, and nothing is said of them.",
    bad="""\
def accuracy(hits, labels):
    counted = (labels != -100).sum()
    mean = hits.sum() / counted
    dist.all_reduce(mean)  # found
    return mean / dist.get_world_size()
""",
    good="""\
def accuracy(hits, labels):
    counted = (labels != -100).sum()
    pair = torch.stack([hits.sum(), counted])
    dist.all_reduce(pair)
    return pair[0] / pair[1]
""",
    wants=_wants,
    says=_says,
)
