"""A loader that gives every rank all of the data."""

from __future__ import annotations

from holdfast.causes.data.data_not_shared_out import DATA_NOT_SHARED_OUT
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.text}` trains a DDP model, and its loader has no sampler: every rank gets "
        "all of the data"
    )


RULE = Rule(
    name="missing-sampler",
    cause=DATA_NOT_SHARED_OUT,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds training loops of a DDP model over a DataLoader without a sampler whose dataset "
        "appears to be the same on all ranks. Advice: data that are divided among the ranks twice, "
        "streams that all workers of a loader read as a whole, and schedules over the batches of "
        "all data."
    ),
    known_misses=(
        "A dataset whose class or expression mentions ranks, workers, shards, streams or "
        "randomness is assumed to be rank-specific. FSDP and other wrappers are not checked: ranks "
        "of one tensor-parallel group need equal data."
    ),
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
    kinds=("unsharded", "habit-sampler"),
    message=_message,
)
