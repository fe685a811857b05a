"""CKPT008 checkpoint-runs-code."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

CHECKPOINT_RUNS_CODE = Cause(
    code="CKPT008",
    name="checkpoint-runs-code",
    summary="Loading a checkpoint executes any code that its file contains, on every rank.",
    what_happens="A file of torch.save is a pickle, and a pickle may call any function while it "
    "is read. With `weights_only=False` torch allows that. Anyone who can write to the folder, or "
    "to the page from which the file was downloaded, then has the job's permissions on all of its "
    "hosts.",
    shows_before="`torch.load(..., weights_only=False)`; or no such argument with torch older "
    "than 2.6, where it was the default.",
    shows_during="Nothing: the weights are right as well.",
    shows_after="`Weights only load failed` if torch refused to execute the code, otherwise "
    "nothing in the job's own output. Processes, connections and files that the script did not "
    "create.",
    known_misses="A file that only the job itself can write is no danger, which the source does "
    "not show. Loads inside a library are not checked.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.SOURCE,
        EvidenceSource.CHECKPOINT,
    ),
    signals=(
        LogSignal(
            name="weights-only",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="torch refused to execute code that the checkpoint contains",
            patterns=(
                "Weights only load failed",
                (
                    "Unsupported (?:global|class|operand).{0,120}(?:weights_only|add_sa"
                    "fe_globals|GLOBAL)"
                ),
            ),
            examples=(
                (
                    "[rank0]: _pickle.UnpicklingError: Weights only load failed. This "
                    "file can still be loaded, to do so you have two options"
                ),
            ),
            counter_examples=(
                ("FutureWarning: You are using `torch.load` with `weights_only=False`"),
            ),
        ),
    ),
    remedies=(
        by_hand(
            "Save state dicts and plain values, and load them with `torch.load(path, "
            "weights_only=True)`; allow a class that must be in the file by name: "
            "`torch.serialization.add_safe_globals([Config])`."
        ),
        by_hand(
            "Before loading, list the functions that a file refers to: "
            "`torch.serialization.get_unsafe_globals_in_checkpoint(path)`."
        ),
        by_hand("Download published weights as safetensors, which contain no code."),
    ),
    sources=("torch.load: weights_only", "pytorch/pytorch#86812", "pytorch/pytorch#31875"),
)
