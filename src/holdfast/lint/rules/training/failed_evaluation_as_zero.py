"""A failed evaluation that counts as a result."""

from __future__ import annotations

from holdfast.causes.numerics.failed_evaluation_counted import FAILED_EVALUATION_COUNTED
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    return (
        f"if the evaluation fails for any reason, {divergence.text} is 0 and is used as if it had "
        "been measured"
    )


RULE = Rule(
    name="failed-evaluation-as-zero",
    cause=FAILED_EVALUATION_COUNTED,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds evaluations that turn any exception into 0, if early stopping, the best checkpoint "
        "or the schedule depends on the value."
    ),
    known_misses=(
        "Evaluations are recognized by name; a value passed on through several calls is not "
        "followed."
    ),
    bad="""\
def evaluate(model, batches):
    try:
        return sum(model(batch).item() for batch in batches) / len(batches)
    except Exception:
        return 0.0  # found


def train(model, batches, best):
    accuracy = evaluate(model, batches)
    if accuracy > best:
        torch.save(model.state_dict(), "best.pt.new")
""",
    good="""\
def evaluate(model, batches):
    try:
        return sum(model(batch).item() for batch in batches) / len(batches)
    except Exception:
        return None


def train(model, batches, best):
    accuracy = evaluate(model, batches)
    if accuracy is not None and accuracy > best:
        torch.save(model.state_dict(), "best.pt.new")
""",
    kinds=("failed",),
    message=_message,
)
