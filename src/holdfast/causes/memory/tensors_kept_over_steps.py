"""MEM010 tensors-kept-over-steps."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

TENSORS_KEPT_OVER_STEPS = Cause(
    code="MEM010",
    name="tensors-kept-over-steps",
    summary="Tensors of earlier steps stay alive, so each step needs more GPU memory than the one "
    "before.",
    what_happens="A reference keeps a tensor of each step: a sum of losses without `.item()` or "
    "`.detach()` keeps the whole graph, a list of outputs or metrics keeps the outputs, a hook or "
    "a cache grows. Memory rises by the same amount each step until a request fails, anywhere.",
    shows_before="`total += loss`, `losses.append(loss)`, `outputs.append(output)` in the loop "
    "without `.item()` or `.detach()`; retain_graph=True; an unbounded cache of tensors.",
    shows_during="`torch.cuda.memory_allocated()` at the same line of each step rises steadily.",
    shows_after="`CUDA out of memory` after many good steps, not at the largest allocation. In a "
    "memory snapshot: activations that were created before the optimizer's last steps and are "
    "still held.",
    known_misses="Visible in a snapshot only if its events cover three steps and the optimizer "
    "allocates memory in each; in a log only if it states the memory of every few steps. "
    "Growth caused by growing inputs (longer sequences, a "
    "curriculum) is not this.",
    evidence_sources=(EvidenceSource.LOG, EvidenceSource.SNAPSHOT),
    log_examples=(
        (
            "step 1 loss 2.1 allocated 4.00 GiB\nstep 2 loss 2.1 allocated 4.52 GiB\n"
            "step 3 loss 2.0 allocated 5.03 GiB\nstep 4 loss 2.0 allocated 5.55 GiB\n"
            "step 5 loss 2.0 allocated 6.06 GiB\nstep 6 loss 1.9 allocated 6.58 GiB\n"
            "step 7 loss 1.9 allocated 7.09 GiB\nstep 8 loss 1.9 allocated 7.61 GiB\n"
            "step 9 loss 1.9 allocated 8.12 GiB\nstep 10 loss 1.8 allocated 8.64 GiB\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 614.00 MiB. GPU 0 has a "
            "total capacity of 9.00 GiB of which 331.00 MiB is free. Of the allocated memory 8.60 "
            "GiB is allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but unallocated."
        ),
    ),
    remedies=(
        by_hand(
            "Keep numbers, not tensors: `total += loss.detach()`, or `.item()` every few steps."
        ),
        by_hand(
            "Move collected outputs to the host at once: `outputs.append(output.detach().cpu())`."
        ),
        by_hand(
            "Record a snapshot over a few steps, and find the owners of the oldest blocks: "
            "torch.cuda.memory._record_memory_history(max_entries=100_000)."
        ),
    ),
    sources=(
        "torch: Frequently Asked Questions, my model reports cuda runtime error: out of memory",
    ),
)
