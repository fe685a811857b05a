"""GPU012 gpu-renumbered."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

GPU_RENUMBERED = Cause(
    code="GPU012",
    name="gpu-renumbered",
    summary="The GPU numbers in the program are not those that nvidia-smi shows.",
    what_happens="CUDA numbers the devices in CUDA_VISIBLE_DEVICES from 0: without GPU 0, GPU 1 "
    "becomes cuda:0. If GPUs differ, CUDA also puts the fastest first unless "
    "CUDA_DEVICE_ORDER=PCI_BUS_ID. If a message then names `GPU 3`, that is another device.",
    shows_before="The variable is set to anything but 0, 1, 2 … in this order; a host has GPUs of "
    "several kinds.",
    shows_during="The wrong GPU is inspected, drained, or excluded from the next job.",
    shows_after="A fault that moves to another number when a GPU is excluded.",
    known_misses="What a scheduler or container hides below CUDA (cgroups, --gpus) also changes "
    "the numbers, and is not visible.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        disruptive("Use the order of nvidia-smi.", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        disruptive(
            "Select GPUs by UUID to exclude one.",
            "CUDA_VISIBLE_DEVICES=GPU-UUID,GPU-UUID holdfast run SCRIPT",
        ),
    ),
    sources=(
        "CUDA C++ Programming Guide: CUDA environment variables",
        "torch: torch/cuda/__init__.py",
    ),
)
