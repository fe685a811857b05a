"""NUM005 loss-jumped."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

LOSS_JUMPED = Cause(
    code="NUM005",
    name="loss-jumped",
    summary="The loss rose far above its earlier values, and stayed there.",
    what_happens="A learning rate that is too high for the current state, a series of bad "
    "batches, an optimizer moment that grew too large, or values changed by a hardware fault push "
    "the parameters away; the loss does not recover, or needs thousands of steps to.",
    shows_before="Gradient norms that grow over several steps; a warm-up that is too short; no "
    "gradient clipping.",
    shows_during="`holdfast.loop` compares the mean loss over all ranks with the median of the "
    "last 128 steps: three consecutive steps that exceed it by ten deviations (median absolute "
    "deviation, at least a twentieth of the median) end all ranks with LossSpike, before the next "
    "checkpoint is written.",
    shows_after="`holdfast.core.errors.LossSpike` on all ranks; a loss curve with a step in it.",
    known_misses="A slow divergence is not found. An intended change of the data or of the loss "
    "(a curriculum) looks the same: use `holdfast.loop(spike=None)`. The first 64 steps after a "
    "start are not checked, so a jump right after a resume is not found.",
    evidence_sources=(EvidenceSource.LOG, EvidenceSource.TRACE),
    signals=(
        LogSignal(
            name="loss-spike",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="the loss rose far above its earlier values",
            patterns=(
                r"LossSpike|(?:Error|Exception): .{0,60}\b[Ll]oss (?:spike|diverged|exploded)",
                (
                    r"[Ll]oss (?:diverged|exploded|spike)\b.{0,120}"
                    r"(?:stopping|aborting|terminating|exiting)"
                ),
                (
                    r"(?:[Ss]topp?(?:ing|ed)|[Aa]bort(?:ing|ed)).{0,60}\b[Ll]oss (?:is|was|has been"
                    r"|stayed) (?:above|over|more than)"
                ),
                (
                    r"(?:[Ss]topping|[Aa]borting|[Tt]erminating).{0,60}\b[Ll]oss "
                    r"(?:diverged|exploded|spike)"
                ),
            ),
            examples=(
                (
                    "[rank0]: RuntimeError: loss spike: mean of the last 300 steps is 7.40, "
                    "before 2.31"
                ),
                "trainer: stopping at step 8123, loss diverged (12.41 > 3 x 2.31)",
            ),
            counter_examples=(
                "no loss spike in the last 1000 steps",
                "loss spike detector enabled: window 128, threshold 6.0",
            ),
        ),
    ),
    treatment=Treatment.NUMERICS,
    remedies=(
        disruptive(
            "Go back to a checkpoint from before the jump, and skip those batches: `holdfast "
            "run` does so automatically if the script uses `holdfast.loop`."
        ),
        by_hand(
            "Clip gradients, lengthen the warm-up, or lower the learning rate or Adam's beta2."
        ),
    ),
    sources=(
        "Chowdhery et al., PaLM, arXiv 2204.02311, section 5.1",
        "Molybog et al., arXiv 2304.09871",
    ),
)
