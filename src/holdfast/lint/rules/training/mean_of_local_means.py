"""A mean of per-rank means with different counts."""

from __future__ import annotations

from holdfast.causes.numerics.mean_of_local_means import MEAN_OF_LOCAL_MEANS
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.text}` was divided by this rank's own count at "
        f"{short_location(divergence.guard)}, and its sum over ranks is divided by their number: "
        "ranks with few samples get the same weight"
    )


RULE = Rule(
    name="mean-of-local-means",
    cause=MEAN_OF_LOCAL_MEANS,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds metrics that each rank divides by its own count (of elements that pass a comparison "
        "or mask), which are then all-reduced and divided by the number of ranks: in one function, "
        "in a function that receives the mean, or with a mean that another function or method "
        "returns. Also sums of gradients or means over ranks in a module that divides by no number "
        "of ranks; results of ReduceOp.AVG and losses of a DDP model that are divided by that "
        "number once more; sums that are taken twice, or divided by the number of ranks of another "
        "group or of a host; lists of one tensor that all_gather writes; objects that are not read "
        "from the list of their broadcast; and means of batches that gather_for_metrics gets in "
        "place of samples. Advice: results that a rank loses or has for its own share only: edits "
        "of GatheredParameters without `modifier_rank`, Lightning's `predict`, gradients through "
        "all_gather, totals that are summed over the ranks in the loop that counts them, sums over "
        "the ranks divided by the count of one rank, and counts of a share divided by the size of "
        "all data."
    ),
    known_misses=(
        "Through more than two functions. Counts of whole batches are equal on all ranks with a "
        "DistributedSampler, and are not reported."
    ),
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
    kinds=("mean", "habit-result"),
    message=_message,
)
