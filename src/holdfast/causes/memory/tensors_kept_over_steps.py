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
    known_misses="Visible in a snapshot only, and only if its events cover three steps and the "
    "optimizer allocates memory in each. Growth caused by growing inputs (longer sequences, a "
    "curriculum) is not this.",
    evidence_sources=(EvidenceSource.SNAPSHOT,),
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
