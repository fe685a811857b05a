"""Ranks that draw equal random numbers, which are gathered as if they were different."""

from __future__ import annotations

from holdfast.causes.data.ranks_draw_the_same import RANKS_DRAW_THE_SAME
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    return (
        "all ranks draw the same numbers here, with the same seed at "
        f"{short_location(divergence.guard)}, and gather `{divergence.text}`: copies of one tensor"
    )


RULE = Rule(
    name="equal-seeds",
    cause=RANKS_DRAW_THE_SAME,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds random tensors that are gathered from all ranks although every seed in the module "
        "is the same on all ranks. Advice: the random state that one rank saves and all restore."
    ),
    known_misses=(
        "Equal noise, dropout and augmentation on all ranks, which many programs accept; samples "
        "that are written to files or drawn inside a model; seeds set by another module. Tests are "
        "not checked."
    ),
    bad="""\
def sample(model, count):
    torch.manual_seed(0)
    noise = torch.randn(count, 16)  # found
    images = [torch.empty_like(noise) for _ in range(dist.get_world_size())]
    dist.all_gather(images, noise)
    return images
""",
    good="""\
def sample(model, count):
    torch.manual_seed(0 + dist.get_rank())
    noise = torch.randn(count, 16)
    images = [torch.empty_like(noise) for _ in range(dist.get_world_size())]
    dist.all_gather(images, noise)
    return images
""",
    kinds=("same-draws", "habit-seed"),
    message=_message,
)
