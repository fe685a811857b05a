"""A collective under a condition on rank-local data."""

from __future__ import annotations

from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_cause, describe_operation


def _matches(divergence: Divergence) -> bool:
    if divergence.kind == "habit-branch":
        return True
    return divergence.op_kind not in ("", "creation") and not divergence.is_rank_only


def _message(divergence: Divergence) -> str:
    return (
        f"{describe_operation(divergence)} is entered only under `{divergence.text}`, which each "
        f"rank decides for itself: {describe_cause(divergence.sources)}"
    )


RULE = Rule(
    name="local-data-branch",
    cause=RANK_SKIPS_COLLECTIVE,
    tier=RuleTier.DATA,
    what_it_does=(
        "Finds collectives under a condition on a rank's own data, files, time or counters. "
        "Advice: parts of a wrapped model, or the whole loss, that a rank's batch leaves out, "
        "unless DDP finds unused parameters; returns of ranks without gradients before a "
        "collective, and tests of each gradient around one where batches may leave out parameters; "
        "flags by which one rank stops a library's trainer; "
        "context managers that yield on some ranks only; monitored losses of the rank's own share."
    ),
    known_misses=(
        "On a shared file system all ranks see the same files, so the finding is false as long as "
        "nothing writes at that time."
    ),
    bad="""\
import pathlib


def resume(path):
    if pathlib.Path(path).exists():
        box = [torch.load(path) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)  # found
        return box[0]
    return None
""",
    good="""\
import pathlib


def resume(path):
    box = [torch.load(path) if dist.get_rank() == 0 and pathlib.Path(path).exists() else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]
""",
    kinds=("branch", "habit-branch"),
    matches=_matches,
    message=_message,
)
