"""A shuffling sampler that is never told the epoch."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.epoch_edit import set_epoch
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "epoch"


def _says(parting: Parting) -> str:
    return (
        f"`{parting.text}` goes over a shuffled DistributedSampler and never calls its set_epoch: every "
        "epoch has the same order"
    )


RULE = Rule(
    name="missing-set-epoch",
    cause=by_name("sampler-epoch-not-set"),
    tier=Tier.ADVICE,
    what_it_does="Finds loops over epochs over a loader with a DistributedSampler that shuffles and is never told the "
    "epoch.",
    known_misses="Samplers that a library wraps and tells by itself (Accelerate, Lightning).",
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
    wants=_wants,
    says=_says,
    mends=set_epoch,
)
