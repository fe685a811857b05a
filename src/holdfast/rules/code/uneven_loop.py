"""A loop with collectives whose number of rounds differs over ranks."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation, why


def _wants(parting: Parting) -> bool:
    return parting.kind == "loop"


def _says(parting: Parting) -> str:
    return (
        f"`{parting.text}` need not have as many rounds on all ranks, and each enters "
        f"{operation(parting)}: {why(parting.sources)}"
    )


RULE = Rule(
    name="uneven-loop",
    cause=by_name("uneven-inputs"),
    tier=Tier.DATA,
    what_it_does="Finds loops with collectives in them whose number of rounds differs over ranks.",
    known_misses="Lengths of loaders and data sets that are not seen being made.",
    bad="""\
def train(samples):
    mine = torch.split(samples, 4)[dist.get_rank()]
    for sample in mine:  # found
        dist.all_reduce(sample)
""",
    good="""\
def train(samples):
    rounds = torch.tensor(len(torch.split(samples, 4)[dist.get_rank()]))
    dist.all_reduce(rounds, op=dist.ReduceOp.MIN)
    for _ in range(int(rounds)):
        dist.all_reduce(samples)
""",
    wants=_wants,
    says=_says,
)
