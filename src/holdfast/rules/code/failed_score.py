"""An evaluation that failed, and counts as a result."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "failed"


def _says(parting: Parting) -> str:
    return f"whatever fails in the evaluation, {parting.text} is 0 then, and decides as if it had been measured"


RULE = Rule(
    name="failed-evaluation-as-zero",
    cause=by_name("failed-evaluation-counted"),
    tier=Tier.ADVICE,
    what_it_does="Finds evaluations in which any exception becomes 0, where early stopping, the best checkpoint or the "
    "schedule goes by the number.",
    known_misses="An evaluation is told by its name; a number that is handed on through several calls is not followed.",
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
    wants=_wants,
    says=_says,
)
