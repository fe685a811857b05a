"""DATA006 data-not-shared-out."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

DATA_NOT_SHARED_OUT = Cause(
    code="DATA006",
    name="data-not-shared-out",
    summary="Every rank processes the whole dataset instead of a shard of it.",
    what_happens="A loader without a DistributedSampler gives each rank all samples. If ranks "
    "shuffle identically, or not at all, all of them compute the same gradient of the same batch, "
    "and N devices train as fast as one; if they shuffle differently, an epoch is N epochs long.",
    shows_before="A model in DDP and a DataLoader with neither a sampler nor rank-specific data.",
    shows_during="The number of steps per epoch does not decrease as ranks are added, and the "
    "loss is the same on all ranks.",
    shows_after="Samples per second scale perfectly, but the time to a given loss does not "
    "improve.",
    known_misses="Data that each rank draws at random need no sampler. Accelerate and Lightning "
    "shard the loaders passed to them.",
    evidence_sources=(EvidenceSource.SOURCE,),
    remedies=(
        by_hand(
            "Shard the data: `DataLoader(dataset, sampler=DistributedSampler(dataset))`, "
            "with `set_epoch` before each epoch and without shuffle=True."
        ),
    ),
    sources=("torch.utils.data.distributed.DistributedSampler", "Parskatt/RoMa#32"),
)
