"""CKPT006 checkpoint-of-another-model."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.findings import Cause

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
