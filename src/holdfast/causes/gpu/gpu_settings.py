"""GPU013 gpu-settings."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

GPU_SETTINGS = Cause(
    code="GPU013",
    name="gpu-settings",
    summary="A GPU has settings that make it unusable, slower than its neighbors, or slow to "
    "start.",
    what_happens="Prohibited or exclusive compute mode, MIG slices, a power limit below the "
    "default, disabled error correction or disabled persistence mode were set by an "
    "administrator, or lost at the last boot.",
    shows_before="`nvidia-smi -q` shows compute mode, MIG mode, power limits, ECC mode and "
    "persistence mode.",
    shows_during="`all CUDA-capable devices are busy or unavailable` at the first CUDA call "
    "(compute mode), a rank that is always last (power limit), or seconds of silence at each "
    "start (persistence).",
    shows_after="The first of these as a CUDA error; nothing for the others.",
    known_misses="Application clocks and limits outside the board (a rack's power capping) are "
    "not read.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        disruptive(
            "Restore the setting, as root, on the host.",
            "nvidia-smi -pm 1; nvidia-smi -c DEFAULT; nvidia-smi -pl WATTS",
        ),
        by_hand(
            "Let nvidia-persistenced restore it at each boot.",
            "systemctl enable nvidia-persistenced",
        ),
    ),
    sources=("NVIDIA: nvidia-smi manual", "NVIDIA: Driver persistence"),
)
