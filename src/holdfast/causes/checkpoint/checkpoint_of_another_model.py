"""CKPT006 checkpoint-of-another-model."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

CHECKPOINT_OF_ANOTHER_MODEL = Cause(
    code="CKPT006",
    name="checkpoint-of-another-model",
    summary="The checkpoint was saved by another model, or with another optimizer, than it is "
    "loaded into.",
    what_happens="Names or shapes of parameters changed between saving and loading: another "
    "configuration, a layer more or less, a wrapper that changes names, other parameter groups, "
    "or the folder of another run.",
    shows_before="The configuration stored in the checkpoint differs from the job's.",
    shows_during="Every rank raises while loading; `holdfast.Checkpoint` names each difference "
    "and loads nothing.",
    shows_after="`CheckpointMismatch` with the names; torch's `Missing key(s) in state_dict` or "
    "`size mismatch`.",
    known_misses="Two models with the same names and shapes cannot be distinguished.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    signals=(
        LogSignal(
            name="state-mismatch",
            tier=Tier.DEVICE,
            confidence=0.75,
            sentence="the checkpoint does not fit the model or the number of ranks",
            patterns=(
                r"size mismatch for \S{1,200}: copying a param with shape",
                r"(?:Missing|Unexpected) key(?:\(s\))? in (?:checkpoint )?state_dict",
                "loaded state dict has a different number of parameter groups",
                (
                    r"used a DP world size of \d+ but the current world size is|loaded "
                    "state dict contains a parameter group that doesn't match"
                ),
            ),
            examples=(
                (
                    "[rank1]: RuntimeError: Error(s) in loading state_dict for Net:\n"
                    "[rank1]: \tsize mismatch for head.weight: copying a param with "
                    "shape torch.Size([8, 4]) from checkpoint, the shape in current "
                    "model is torch.Size([9, 4])."
                ),
                (
                    "[rank5]: deepspeed.runtime.zero.utils.ZeRORuntimeException: The "
                    "checkpoint being loaded used a DP world size of 8 but the current "
                    "world size is 16."
                ),
            ),
            counter_examples=(
                (
                    "WARNING: Some weights were not initialized from the model "
                    "checkpoint and are newly initialized: ['head.weight']"
                ),
            ),
        ),
    ),
    remedies=(
        by_hand(
            "Run the job with the configuration that the checkpoint was saved with, or with "
            "another folder."
        ),
        by_hand(
            "To load only a part (a new head on an old body), use "
            "`checkpoint.load(strict=False)`, which loads what both have."
        ),
    ),
    sources=("torch.nn.Module.load_state_dict", "torch.distributed.checkpoint, default_planner.py"),
)
