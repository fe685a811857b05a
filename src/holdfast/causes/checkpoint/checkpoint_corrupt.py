"""CKPT002 checkpoint-corrupt."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

CHECKPOINT_CORRUPT = Cause(
    code="CKPT002",
    name="checkpoint-corrupt",
    summary="A checkpoint is damaged: bytes changed, or a file is truncated or missing.",
    what_happens="A disk, a copy or a process that died while writing damages the file. Every "
    "loader rejects a missing or truncated file; torch.load, safetensors, DCP and DeepSpeed all "
    "accept a flipped bit silently (measured, six of six), because none of them verifies the "
    "payload.",
    shows_before="Checkpoints written in place, without a checksum, and no second one to fall "
    "back to.",
    shows_during="Nothing hangs: ranks raise while loading, or training continues with wrong "
    "numbers.",
    shows_after="`PytorchStreamReader failed`, `invalid header`, `EOFError`, on the ranks that "
    "read the damaged shard; or a loss after resuming that differs from the one before.",
    known_misses="Without checksums from saving time, damaged numbers cannot be distinguished "
    "from trained ones.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.SOURCE,
        EvidenceSource.CHECKPOINT,
    ),
    signals=(
        LogSignal(
            name="checkpoint-broken",
            tier=Tier.DEVICE,
            confidence=0.7,
            sentence="a checkpoint cannot be read",
            patterns=(
                ("PytorchStreamReader failed|failed finding central directory|UnpicklingError"),
                (
                    r"Unable to load weights from \w{2,12} checkpoint|truncated file: eof"
                    r"|invalid load key, |storage has wrong size"
                    r"|invalid header or archive is "
                    "corrupted|unexpected EOF, expected"
                ),
                (
                    "zero checkpoints paths are missing|MetadataIncompleteBuffer|SafetensorError"
                    "|HeaderTooLarge|InvalidHeaderDeserialization"
                ),
            ),
            examples=(
                (
                    "safetensors_rust.SafetensorError: Error while deserializing header: "
                    "incomplete metadata, file not fully covered"
                ),
            ),
        ),
    ),
    log_examples=(
        (
            "Traceback (most recent call last):\n"
            '  File "/w/train.py", line 20, in resume\n'
            '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n'
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
        ),
        (
            "Traceback (most recent call last):\n"
            '  File "/w/trainer.py", line 20, in load_checkpoint\n'
            '  File "/usr/lib/python3.11/zipfile.py", line 1369, in _RealGetContents\n'
            "zipfile.BadZipFile: File is not a zip file"
        ),
    ),
    alternatives=("checkpoint-io-slow-timeout", "python-exception-on-one-rank"),
    treatment=Treatment.CHECKPOINT,
    remedies=(
        disruptive(
            "Go back to the previous checkpoint, and move the bad one away instead of deleting it."
        ),
        by_hand(
            "Write each file to a temporary path, fsync, checksum, and rename; keep at least "
            "two: `os.replace(temporary, final)`."
        ),
    ),
    sources=(
        "torch 2.13.0, safetensors 0.8, deepspeed 0.19.8, measured",
        "NVIDIA/nvidia-resiliency-ext#349",
    ),
)
