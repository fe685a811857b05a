"""An async handle that is never awaited."""

from __future__ import annotations

from holdfast.causes.sync.result_used_too_early import RESULT_USED_TOO_EARLY
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    if divergence.kind == "handle-early":
        return (
            f"`{divergence.detail}` is used before the {divergence.text} that was started at "
            f"{short_location(divergence.guard)} is awaited: it may still run"
        )
    buffer = f"`{divergence.detail}`" if len(divergence.detail) <= 60 else "its buffer"
    return (
        f"the {divergence.text} started here is never awaited, and {buffer} is used while it may "
        "still run"
    )


RULE = Rule(
    name="missing-wait",
    cause=RESULT_USED_TOO_EARLY,
    tier=RuleTier.DRIFT,
    what_it_does=(
        "Finds collectives with `async_op=True`, isend and irecv whose handle is dropped or never "
        "read, although the buffer is used afterwards, and buffers that are used before the handle "
        "is awaited. Callers of functions that return a handle, always or depending on an option, "
        "are checked too."
    ),
    known_misses=(
        "Handles in a list that is never iterated, or that are awaited on some paths only. A "
        "function that synchronizes with the device or a barrier afterwards is not reported."
    ),
    bad="""\
def start(gradients):
    return dist.all_reduce(gradients, async_op=True)


def average(gradients):
    start(gradients)  # found
    return gradients / dist.get_world_size()
""",
    good="""\
def start(gradients):
    return dist.all_reduce(gradients, async_op=True)


def average(gradients):
    start(gradients).wait()
    return gradients / dist.get_world_size()
""",
    kinds=("handle", "handle-early"),
    message=_message,
)
