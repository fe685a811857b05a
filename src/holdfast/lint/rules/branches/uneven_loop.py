"""A loop with collectives whose iteration count differs between ranks."""

from __future__ import annotations

from holdfast.causes.sync.uneven_inputs import UNEVEN_INPUTS
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_cause, describe_operation


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.text}` may have a different number of iterations on each rank, and each "
        f"iteration enters {describe_operation(divergence)}: {describe_cause(divergence.sources)}"
    )


RULE = Rule(
    name="uneven-loop",
    cause=UNEVEN_INPUTS,
    tier=RuleTier.DATA,
    what_it_does=(
        "Finds loops with collectives whose number of iterations differs between ranks. Advice: "
        "`generate` of a model that ZeRO-3 shards, without `synced_gpus=True`, and loops over the "
        "keys that a rank's own data has added."
    ),
    known_misses="Lengths of loaders and datasets that are not created in the analyzed program.",
    bad="""\
def train(samples):
    local_samples = torch.split(samples, 4)[dist.get_rank()]
    for sample in local_samples:  # found
        dist.all_reduce(sample)
""",
    good="""\
def train(samples):
    rounds = torch.tensor(len(torch.split(samples, 4)[dist.get_rank()]))
    dist.all_reduce(rounds, op=dist.ReduceOp.MIN)
    for _ in range(int(rounds)):
        dist.all_reduce(samples)
""",
    kinds=("loop", "habit-loop"),
    message=_message,
)
