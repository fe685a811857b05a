"""A gather of tensors that each rank pads to its own batch."""

from __future__ import annotations

from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.text}` seems to have the length of the longest text in the rank's own "
        "batch, and gathering different lengths hangs or fails: reduce it first (.sum(), .mean()), "
        "or call accelerator.pad_across_processes(…, dim=1) before"
    )


RULE = Rule(
    name="padded-gather",
    cause=MISMATCHED_SHAPE,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds gathers of tensors with one position per token (`input_ids`, `attention_mask`, "
        "logits of language models) that a collator pads to the longest text of the batch."
    ),
    known_misses=(
        "Tensors are recognized by name. Modules that pad to a fixed length or cut texts into "
        "blocks are not checked."
    ),
    bad="""\
def count_tokens(accelerator, batch):
    return accelerator.gather_for_metrics(batch["attention_mask"]).sum()  # found
""",
    good="""\
def count_tokens(accelerator, batch):
    return accelerator.gather_for_metrics(batch["attention_mask"].sum()).sum()
""",
    kinds=("padded",),
    message=_message,
)
