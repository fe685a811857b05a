"""Messages between two ranks that both send first."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "paired"


def _says(parting: Parting) -> str:
    return (
        "both sides send first and wait for each other: the receipt of the same peer comes only at "
        f"{short(parting.guard)}"
    )


RULE = Rule(
    name="p2p-deadlock",
    cause=by_name("p2p-without-partner"),
    tier=Tier.SURE,
    what_it_does="Finds two blocking calls in an order that cannot pair: every rank sends, and only then receives from "
    "the same peer.",
    known_misses="Small messages fit into buffers and hide it.",
    bad="""\
def swap(mine, peer):
    other = torch.empty_like(mine)
    dist.send(mine, dst=peer)  # found
    dist.recv(other, src=peer)
    return other
""",
    good="""\
def swap(mine, peer):
    other = torch.empty_like(mine)
    if dist.get_rank() < peer:
        dist.send(mine, dst=peer)
        dist.recv(other, src=peer)
    else:
        dist.recv(other, src=peer)
        dist.send(mine, dst=peer)
    return other
""",
    wants=_wants,
    says=_says,
)
