"""PERF010 gpu-awaited-each-step."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

GPU_AWAITED_EACH_STEP = Cause(
    code="PERF010",
    name="gpu-awaited-each-step",
    summary="The script reads a GPU value in every step, which waits until all queued GPU work is "
    "done.",
    what_happens="Python only queues work for the GPU and runs ahead of it. `loss.item()`, "
    "`float(loss)`, `loss.cpu()` and `print(loss)` need the value itself, so Python waits until "
    "the GPU has no work left, and the GPU then waits for Python. Every rank pays in every step, "
    "and all wait for the slowest.",
    shows_before="Such a call in the loop that calls backward, without a condition such as `step "
    "% 50 == 0`.",
    shows_during="Gaps between kernels in a profile, each after a cudaStreamSynchronize or "
    "cudaMemcpy; utilization below 100% although batches are ready.",
    shows_after="Nothing but the time: steps are slower by the time in which Python prepares the "
    "next one.",
    known_misses="If a step takes long and queues little work, the gap is too short to matter: "
    "measure before and after. A loss that must be checked in each step (a limit for NaN) is "
    "worth its cost.",
    evidence_sources=(EvidenceSource.SOURCE,),
    remedies=(
        by_hand(
            "Accumulate on the device, and read it now and then: `total += loss.detach()`, "
            "and `if step % 50 == 0: print(total.item() / 50)`."
        ),
        disruptive(
            "Find where Python waits: `torch.cuda.set_sync_debug_mode('warn')` reports each "
            "such call."
        ),
    ),
    sources=(
        "PyTorch performance tuning guide: Avoid unnecessary CPU-GPU synchronization",
        "torch.cuda.set_sync_debug_mode",
    ),
)
