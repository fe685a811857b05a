"""A loader that gives every rank all of the data."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "whole"


def _says(parting: Parting) -> str:
    return f"`{parting.text}` trains a model in DDP, and its loader has no sampler: every rank gets all of the data"


RULE = Rule(
    name="missing-sampler",
    cause=by_name("data-not-shared-out"),
    tier=Tier.ADVICE,
    what_it_does="Finds training loops of a model in DDP over a DataLoader without a sampler, whose data are the same "
    "for all ranks as far as can be seen.",
    known_misses="Data whose class or expression speaks of ranks, workers, shards, streams or chance are believed to "
    "be a rank's own. FSDP and other wrappers are left alone: ranks of one tensor-parallel group need equal data.",
    bad="""\
def train(data, optimizer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    for batch in loader:  # found
        model(batch).sum().backward()
        optimizer.step()
""",
    good="""\
def train(data, optimizer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
    sampler.set_epoch(0)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
""",
    wants=_wants,
    says=_says,
)
