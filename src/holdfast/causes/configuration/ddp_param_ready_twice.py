"""CONF003 ddp-param-ready-twice."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

DDP_PARAM_READY_TWICE = Cause(
    code="CONF003",
    name="ddp-param-ready-twice",
    summary="DistributedDataParallel received the gradient of one parameter twice in an iteration.",
    what_happens="A parameter is used in several re-entrant backward passes (activation "
    "checkpointing with use_reentrant=True over shared layers), outside the wrapped forward, or "
    "in two branches whose graphs both reach it. DDP expects one gradient per parameter and "
    "rejects the second.",
    shows_before="use_reentrant=True together with find_unused_parameters=True or tied weights; "
    "parameters used outside the module's forward.",
    shows_during="No hang: the backward pass of the first iteration raises, on all ranks that run "
    "the same code.",
    shows_after="`Expected to mark a variable ready only once`, with the parameter's index, or "
    "its name with TORCH_DISTRIBUTED_DEBUG=INFO.",
    known_misses="If only some ranks take the second branch, they raise and the others report "
    "lost peers; the message on the raising ranks is then the root.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="ddp-twice",
            tier=Tier.NAMED,
            confidence=0.95,
            sentence="DDP received the gradient of a parameter twice",
            patterns=(
                (
                    "Expected to mark a variable ready only once|marked as ready twice|marked "
                    "ready twice"
                ),
            ),
            examples=("[rank0]: RuntimeError: Expected to mark a variable ready only once.",),
        ),
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Use non-reentrant activation checkpointing: "
            "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`."
        ),
        by_hand(
            "If the graph is the same in every iteration, declare it static: "
            "`DistributedDataParallel(model, static_graph=True)`."
        ),
        by_hand("Detach the shared branch if its gradient is needed only once."),
    ),
    sources=("torch: torch/csrc/distributed/c10d/reducer.cpp", "torch.utils.checkpoint"),
)
