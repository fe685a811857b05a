"""A shuffling sampler without set_epoch."""

from __future__ import annotations

from holdfast.causes.data.sampler_epoch_not_set import SAMPLER_EPOCH_NOT_SET
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier
from holdfast.lint.rules.set_epoch_fix import set_epoch_edit


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.text}` iterates over a shuffling DistributedSampler and never calls its "
        "set_epoch: every epoch has the same order"
    )


RULE = Rule(
    name="missing-set-epoch",
    cause=SAMPLER_EPOCH_NOT_SET,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds epoch loops over a loader with a shuffling DistributedSampler whose set_epoch is "
        "never called, or only on a sampler that does not shuffle."
    ),
    known_misses="Samplers that a library wraps and updates itself (Accelerate, Lightning).",
    bad="""\
def train(data):
    loader = torch.utils.data.DataLoader(data, sampler=torch.utils.data.DistributedSampler(data))
    for epoch in range(3):  # found
        for batch in loader:
            print(epoch, batch)
""",
    good="""\
def train(data):
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
            print(epoch, batch)
""",
    kinds=("epoch",),
    message=_message,
    fix=set_epoch_edit,
)
