"""A checkpoint that may run code when loaded."""

from __future__ import annotations

from holdfast.causes.checkpoint.checkpoint_runs_code import CHECKPOINT_RUNS_CODE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    path = divergence.text if len(divergence.text) <= 80 else "the file"
    return (
        f"weights_only=False unpickles any object: anyone who can write {path} can run code on "
        "every rank that loads it"
    )


RULE = Rule(
    name="unsafe-load",
    cause=CHECKPOINT_RUNS_CODE,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds `torch.load(..., weights_only=False)` of files that the function did not write "
        "itself."
    ),
    known_misses=(
        "Calls without weights_only: since torch 2.6 the default is safe, and the torch version is "
        "not in the source. Values of weights_only that are not constant. Other ways to unpickle "
        "(`pickle.load`, `joblib`), for which bandit and ruff have rules (S301)."
    ),
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
    kinds=("pickle",),
    message=_message,
)
