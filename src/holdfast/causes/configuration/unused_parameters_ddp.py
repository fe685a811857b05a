"""CONF002 unused-parameters-ddp."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

UNUSED_PARAMETERS_DDP = Cause(
    code="CONF002",
    name="unused-parameters-ddp",
    summary="DistributedDataParallel waits for gradients of parameters that do not contribute to "
    "the loss.",
    what_happens="DDP reduces a bucket when all of its parameters have a gradient. A parameter "
    "that the forward pass did not use never gets one: the reduction of the iteration does not "
    "finish and the next forward pass raises. If the parameter is unused on some ranks only, "
    "those raise or wait alone.",
    shows_before="Branches in forward that depend on the input, auxiliary heads that are not in "
    "the loss, layers frozen after wrapping, a model wrapped twice.",
    shows_during="Usually an exception at the second iteration, not a hang. With data-dependent "
    "branches the ranks hang in DDP's all-reduce: their trace files show different buckets or one "
    "all-reduce less.",
    shows_after="`Expected to have finished reduction in the prior iteration before starting a "
    "new one` and the indices of the parameters, on every rank that left some unused.",
    known_misses="With find_unused_parameters=True the error disappears, and a data-dependent "
    "branch may still give ranks different collectives. A static graph that changes causes nearly "
    "the same message.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="ddp-unused",
            tier=Tier.NAMED,
            confidence=0.95,
            sentence="parameters got no gradient under DDP",
            patterns=(
                "Expected to have finished reduction in the prior iteration",
                (
                    r"not used in producing (?:the )?loss|did not receive grad for rank "
                    r"(?P<rank>\d+)"
                ),
            ),
            examples=(
                (
                    "RuntimeError: Expected to have finished reduction in the prior iteration "
                    "before starting"
                ),
                "Parameters which did not receive grad for rank 3: head.weight, head.bias",
            ),
        ),
    ),
    treatment=Treatment.CODE,
    remedies=(
        disruptive("Let torch name the parameters.", "export TORCH_DISTRIBUTED_DEBUG=INFO"),
        by_hand(
            "If the unused parameters are intended, declare them (costs a graph traversal "
            "per iteration): `DistributedDataParallel(model, find_unused_parameters=True)`."
        ),
        by_hand(
            "Better: use every parameter in the loss on every rank, or freeze it before wrapping."
        ),
    ),
    sources=(
        "torch: torch/csrc/distributed/c10d/reducer.cpp",
        "torch.nn.parallel.DistributedDataParallel",
    ),
)
