"""The forward or backward of a wrapped model on some ranks only."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return (
        parting.kind == "branch"
        and parting.op is not None
        and parting.op.kind in ("forward", "backward")
        and parting.by_rank
        and (not parting.op.weak or parting.barrier)
    )


def _says(parting: Parting) -> str:
    return (
        f"the {parting.op.name if parting.op else 'forward'} of a wrapped model is called only where "
        f"`{parting.text}` holds: it talks to the other ranks"
    )


RULE = Rule(
    name="rank-guarded-wrapped-forward",
    cause=by_name("rank-guarded-collective"),
    tier=Tier.SURE,
    what_it_does="Finds the forward or backward of a model in DDP, FSDP or DeepSpeed on some ranks only: broadcasts of "
    "buffers, gathers of parameters and reductions of gradients are inside.",
    known_misses="The forward of a DDP model without buffers talks to nobody, and is reported only where a barrier "
    "follows.",
    bad="""\
def evaluate(model, batches):
    return sum(model(batch).mean() for batch in batches)


def train(batches):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4))
    if dist.get_rank() == 0:
        print(evaluate(model, batches))  # found
    dist.barrier()


train([torch.ones(2, 4)])
""",
    good="""\
def evaluate(model, batches):
    return sum(model(batch).mean() for batch in batches)


def train(batches):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4))
    if dist.get_rank() == 0:
        print(evaluate(model.module, batches))
    dist.barrier()


train([torch.ones(2, 4)])
""",
    wants=_wants,
    says=_says,
)
