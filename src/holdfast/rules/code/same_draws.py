"""Ranks that all draw the same numbers, which are gathered as if they were different."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "same-draws"


def _says(parting: Parting) -> str:
    return (
        f"all ranks draw the same here, after the same seed at {short(parting.guard)}, and `{parting.text}` is "
        "gathered from all: copies of one"
    )


RULE = Rule(
    name="equal-seeds",
    cause=by_name("ranks-draw-the-same"),
    tier=Tier.ADVICE,
    what_it_does="Finds random tensors that are gathered from all ranks where every seed of the module is the same on "
    "all ranks.",
    known_misses="Noise, dropout and augmentation that are the same on all ranks, which many programs accept; samples "
    "that go to files or that a model draws within itself; seeds that another module sets. Tests are left out.",
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
    wants=_wants,
    says=_says,
)
