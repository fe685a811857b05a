"""NUM001 mixed-precision-nan."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

MIXED_PRECISION_NAN = Cause(
    code="NUM001",
    name="mixed-precision-nan",
    summary="NaN or Inf in the loss or the gradients stopped the training.",
    what_happens="A float16 overflow, a learning rate that is too high, a division by a zero "
    "count, bad data, or one rank with damaged memory creates a NaN; the gradient all-reduce "
    "spreads it to all ranks. With a loss scaler the scale drops until the program stops; without "
    "one the parameters are NaN after one step.",
    shows_before="float16 without a scaler, log or sqrt of unclamped values, losses averaged over "
    "zero tokens.",
    shows_during="No hang, if all ranks decide alike. If a rank with a NaN skips the step alone, "
    "the others wait for it: then rank-skips-collective is the verdict.",
    shows_after="`loss is nan`, `Gradient overflow. Skipping step, loss scaler ... reducing loss "
    "scale`, `Current loss scale already at minimum`, on all ranks from the same step on.",
    known_misses="holdfast records sizes and types, not values: a NaN is known only if the "
    "program reports it (`loop.report(loss=loss)` does, for all ranks). After the all-reduce the "
    "rank of origin is unknown.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    signals=(
        LogSignal(
            name="nan",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="the loss or the gradients are NaN or infinite",
            patterns=(
                (
                    r"""[Ll]oss['\"]?\s*(?:is|=|:|became)?\s*(?:tensor\()?[-+]?(?:nan|NaN|NAN"""
                    r"|inf\b)"
                ),
                (
                    r"""[Gg]rad(?:ient)?(?:[ _][Nn]orm)?['\"]?\s*(?:is|="""
                    r"|:)?\s*(?:tensor\()?(?:nan|NaN|NAN|inf\b)"
                ),
                (
                    r"returned nan values|total norm of order .{1,80} is non-finite|[Ii]nf or "
                    r"[Nn]a[Nn] values in gradients|reducing loss "
                    r"scale to 0\."
                ),
                "Current loss scale already at minimum|[Mm]inimum loss scale|FloatingPointError",
                "NaN (?:or Inf )?(?:found|detected|encountered)|found NaN",
                r"Attempted loss scale: \S+ reducing to (?:1|0\.\d+)(?:\.0)?\s*$",
            ),
            examples=(
                "step 40: loss is nan, stopping",
                "{'loss': nan, 'learning_rate': 1e-05, 'epoch': 0.4}",
                "RuntimeError: Function 'PowBackward0' returned nan values in its 0th output.",
            ),
            counter_examples=(
                (
                    "iteration 10/ 100 | lm loss: 2.1 | grad norm: 900.1 | number of nan "
                    "iterations:   0 |"
                ),
                (
                    "iteration 43680/ 311541 | lm loss: 2.6E+00 | grad norm: 17224.723 | "
                    "number of nan iterations:   0 |"
                ),
                "RuntimeWarning: overflow encountered in exp",
            ),
            weighed=True,
            precedence=1,
        ),
    ),
    treatment=Treatment.NUMERICS,
    remedies=(
        disruptive(
            "Find the first operation that creates it: `torch.autograd.set_detect_anomaly(True)`."
        ),
        by_hand(
            "Use bfloat16, or float32 where it overflows; clip the gradient; lower the "
            "learning rate."
        ),
        by_hand(
            "Check the local loss before the all-reduce, share the result, and skip on all ranks; "
            "or report it to `holdfast.loop`, and `holdfast run` goes back and skips those batches."
        ),
    ),
    sources=("torch.amp.GradScaler", "pytorch/pytorch#136009"),
)
