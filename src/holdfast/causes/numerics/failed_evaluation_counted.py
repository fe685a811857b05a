"""NUM006 failed-evaluation-counted."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

FAILED_EVALUATION_COUNTED = Cause(
    code="NUM006",
    name="failed-evaluation-counted",
    summary="An evaluation failed, and its failure was counted as a score.",
    what_happens="The evaluation is wrapped in `except Exception: return 0.0`, so a full disk, a "
    "timeout of a judge model or a wrong shape returns a number like any other. Early stopping "
    "counts it as no progress, a schedule lowers the learning rate, and if lower is better the "
    "worst checkpoint is kept as the best one. With several ranks the score belongs to one rank "
    "only, and ranks decide differently.",
    shows_before="A broad exception handler around an evaluation that returns 0, and a comparison "
    "with the best score.",
    shows_during="A score of exactly 0 among others that are far from it; a warning in one rank's "
    "log, or nothing.",
    shows_after="Training that ended early, or a best checkpoint from a step without a "
    "measurement.",
    known_misses="A score that really is 0 looks the same.",
    evidence_sources=(EvidenceSource.SOURCE,),
    treatment=Treatment.NUMERICS,
    remedies=(
        by_hand("Let the exception propagate, or return None and make no decision from it."),
        by_hand(
            "With several ranks share the failure with all of them first: "
            "`dist.all_reduce(failed, op=dist.ReduceOp.MAX)`."
        ),
    ),
    sources=(
        "torch.optim.lr_scheduler.ReduceLROnPlateau.step",
        "lightning.pytorch.callbacks.EarlyStopping",
    ),
)
