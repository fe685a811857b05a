"""CKPT003 checkpoint-half-written."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

CHECKPOINT_HALF_WRITTEN = Cause(
    code="CKPT003",
    name="checkpoint-half-written",
    summary="A checkpoint holds parts of two different saves, because one of them was interrupted.",
    what_happens="Saving again under the same name replaces the shards one by one. If a rank dies "
    "in between, the folder holds new and old shards, and DCP and ZeRO load the mixture without a "
    "warning. DeepSpeed's `latest` names a new tag before all ranks have written it.",
    shows_before="Saves into a fixed folder that overwrite (the default of DCP in 2.13, with a "
    "warning only); no completion marker that is written last.",
    shows_during="Nothing at the time: the job was killed or stopped during a checkpoint.",
    shows_after="Modification times of the shards in two clusters; after resuming, a loss that is "
    "slightly or badly wrong. No error.",
    known_misses="If the shards' times were lost in a copy, the step counters in each file, the "
    "names under which `torch.save` wrote them, and the magnitudes of their values are compared. "
    "Where none of these exists, only a manifest of the save can show it.",
    evidence_sources=(EvidenceSource.CHECKPOINT,),
    treatment=Treatment.CHECKPOINT,
    remedies=(
        disruptive("Resume from the last checkpoint that was completed before the incident."),
        by_hand(
            "Save every checkpoint into a separate folder, and write the completion marker "
            "last, after a barrier."
        ),
        RESTART,
    ),
    sources=(
        "torch 2.13.0 DCP and deepspeed 0.19.8, measured",
        "deepspeed: engine.save_checkpoint",
    ),
)
