"""Two ranks that both send first."""

from __future__ import annotations

from holdfast.causes.sync.p2p_without_partner import P2P_WITHOUT_PARTNER
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    return (
        "both sides send first and wait for each other: the receive from the same peer is at "
        f"{short_location(divergence.guard)}"
    )


RULE = Rule(
    name="p2p-deadlock",
    cause=P2P_WITHOUT_PARTNER,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds blocking calls in an order that cannot match: every rank sends first and only then "
        "receives from the same peer. Also messages of all ranks to `rank + 1`, which the last one "
        "lacks, and rings in which all ranks send to the neighbour that they receive from."
    ),
    known_misses="Small messages fit into buffers, which hides the problem.",
    bad="""\
def swap(tensor, peer):
    received = torch.empty_like(tensor)
    dist.send(tensor, dst=peer)  # found
    dist.recv(received, src=peer)
    return received
""",
    good="""\
def swap(tensor, peer):
    received = torch.empty_like(tensor)
    if dist.get_rank() < peer:
        dist.send(tensor, dst=peer)
        dist.recv(received, src=peer)
    else:
        dist.recv(received, src=peer)
        dist.send(tensor, dst=peer)
    return received
""",
    kinds=("paired", "habit-peer"),
    message=_message,
)
