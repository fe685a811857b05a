"""I/O of a sharded model on some ranks only."""

from __future__ import annotations

from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _matches(divergence: Divergence) -> bool:
    return divergence.op_kind == "sharded" and divergence.is_rank_only


def _message(divergence: Divergence) -> str:
    return (
        f"{describe_operation(divergence)} is a collective on a sharded model, but is called only "
        f"under `{divergence.text}`"
    )


RULE = Rule(
    name="rank-guarded-sharded-io",
    cause=RANK_GUARDED_COLLECTIVE,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds saves, loads and state dicts of sharded models (FSDP, DeepSpeed, DCP, Accelerate, "
        "Lightning) on some ranks only: all of these are collectives."
    ),
    known_misses="state_dict() of a model that is not known to be sharded.",
    bad="""\
from torch.distributed.checkpoint import state_dict


def save(model, path):
    if dist.get_rank() == 0:
        torch.save(state_dict.get_model_state_dict(model), path)  # found
""",
    good="""\
from torch.distributed.checkpoint import state_dict


def save(model, path):
    weights = state_dict.get_model_state_dict(model)
    if dist.get_rank() == 0:
        torch.save(weights, path)
""",
    kinds=("branch",),
    matches=_matches,
    message=_message,
)
