"""A loop that waits for the GPU in every round."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "hot-sync"


def _says(parting: Parting) -> str:
    what = f"`{parting.text}`" if len(parting.text) <= 80 else "this"
    return f"{what} waits for the GPU in every round of the training loop at {short(parting.guard)}"


RULE = Rule(
    name="hot-loop-sync",
    cause=by_name("gpu-awaited-each-step"),
    tier=Tier.ADVICE,
    what_it_does="Finds the first `.item()`, `.tolist()`, `.cpu()`, `float(...)` or print of the loss, of its parts or "
    "of the norm of gradients in a loop that calls backward, in functions that it is given to and in a step that the "
    "loop calls as well, under no condition.",
    known_misses="Tensors that backward is not called for; inner loops; `if loss > limit`, which waits too; libraries "
    "that ask for the number themselves (loggers, progress bars). Tests, loops over few rounds, and files that "
    "speak of no device or of one process alone are left out.",
    bad="""\
def train(model, loader, optimizer, device):
    for step, batch in enumerate(loader):
        loss = model(batch.to(device))
        loss.backward()
        optimizer.step()
        print(step, loss.item())  # found
""",
    good="""\
def train(model, loader, optimizer, device):
    for step, batch in enumerate(loader):
        loss = model(batch.to(device))
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())
""",
    wants=_wants,
    says=_says,
)
