"""A training loop that waits for the GPU in every iteration."""

from __future__ import annotations

from holdfast.causes.performance.gpu_awaited_each_step import GPU_AWAITED_EACH_STEP
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    expression = f"`{divergence.text}`" if len(divergence.text) <= 80 else "this"
    return (
        f"{expression} waits for the GPU in every iteration of the training loop at "
        f"{short_location(divergence.guard)}"
    )


RULE = Rule(
    name="hot-loop-sync",
    cause=GPU_AWAITED_EACH_STEP,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds the first unconditional `.item()`, `.tolist()`, `.cpu()`, `float(...)` or print of "
        "the loss, its terms or the gradient norm in a loop that calls backward, in functions that "
        "receive it, and in a step function that the loop calls."
    ),
    known_misses=(
        "Tensors on which backward is not called; inner loops; `if loss > limit`, which also "
        "waits; libraries that read the value themselves (loggers, progress bars). Tests, short "
        "loops, and files without a device or with a single process are not checked."
    ),
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
    kinds=("hot-sync",),
    message=_message,
)
