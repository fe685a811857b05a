"""Forward or backward of a wrapped model on some ranks only."""

from __future__ import annotations

from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _matches(divergence: Divergence) -> bool:
    op = divergence.op
    return (
        op is not None
        and op.kind in ("forward", "backward")
        and divergence.is_rank_only
        and (not op.may_not_wait or divergence.barrier)
    )


def _message(divergence: Divergence) -> str:
    return (
        f"the {divergence.op.name if divergence.op else 'forward'} of a wrapped model is called "
        f"only if `{divergence.text}`, but it communicates with the other ranks"
    )


RULE = Rule(
    name="rank-guarded-wrapped-forward",
    cause=RANK_GUARDED_COLLECTIVE,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds the forward or backward of a DDP, FSDP or DeepSpeed model on some ranks only: it "
        "broadcasts buffers, gathers parameters or reduces gradients."
    ),
    known_misses=(
        "The forward of a DDP model without buffers does not communicate, and is reported only if "
        "a barrier follows."
    ),
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
    kinds=("branch",),
    matches=_matches,
    message=_message,
)
