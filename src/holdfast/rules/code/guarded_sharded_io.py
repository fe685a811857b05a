"""Input and output of a sharded model on some ranks only."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "branch" and parting.op is not None and parting.op.kind == "sharded" and parting.by_rank


def _says(parting: Parting) -> str:
    return (
        f"{operation(parting)} gathers a sharded model from all ranks, and only those for which "
        f"`{parting.text}` holds call it"
    )


RULE = Rule(
    name="rank-guarded-sharded-io",
    cause=by_name("rank-guarded-collective"),
    tier=Tier.SURE,
    what_it_does="Finds saves, loads and state dicts of sharded models (FSDP, DeepSpeed, DCP, Accelerate, Lightning) "
    "on some ranks only: all of them are collectives inside.",
    known_misses="A state_dict() of a model of which is not seen that it is sharded.",
    bad="""\
def save(model, path):
    if dist.get_rank() == 0:
        torch.save(torch.distributed.checkpoint.state_dict.get_model_state_dict(model), path)  # found
""",
    good="""\
def save(model, path):
    weights = torch.distributed.checkpoint.state_dict.get_model_state_dict(model)
    if dist.get_rank() == 0:
        torch.save(weights, path)
""",
    wants=_wants,
    says=_says,
)
