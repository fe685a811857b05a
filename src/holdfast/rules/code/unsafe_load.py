"""A checkpoint that may run code."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "pickle"


def _says(parting: Parting) -> str:
    what = parting.text if len(parting.text) <= 80 else "the file"
    return f"whoever can write {what} runs code on every rank that loads it: weights_only=False allows any pickle"


RULE = Rule(
    name="unsafe-load",
    cause=by_name("checkpoint-runs-code"),
    tier=Tier.ADVICE,
    what_it_does="Finds `torch.load(..., weights_only=False)` of files that the function has not just written itself.",
    known_misses="Calls that say nothing of weights_only: since torch 2.6 that is the safe way, and which torch will "
    "run is not in the source. Values for weights_only that are no constant. Other ways to unpickle (`pickle.load`, "
    "`joblib`), of which bandit and ruff have rules (S301).",
    bad="""\
def resume(model, path):
    state = torch.load(path, map_location="cpu", weights_only=False)  # found
    model.load_state_dict(state["model"])
""",
    good="""\
def resume(model, path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
""",
    wants=_wants,
    says=_says,
)
