"""What the ledger says to the failure at hand: how far the job ever got, and what was tried against the same fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.actions.policy.decisions import DO_NOT_REQUEUE, Failure, Past
from holdfast.actions.policy.treatments import Treatment, treatment

#: Two failures are at the same step where these are no further apart: the ranks of a job are seen in mid-step.
SAME_STEP = 1
_OF_ALL_RANKS = frozenset({Treatment.MEMORY, Treatment.HOST_MEMORY, Treatment.NUMERICS, Treatment.CHECKPOINT})


def position(failure: Failure) -> int | None:
    """The step that the job had come to, counted from its very beginning; None where no step was seen.

    A script that counts by itself begins at 0 at every start: what it loaded, where that is known, is added.
    """
    scene = failure.scene
    if scene.step is None:
        return saved(failure)
    counts_from_zero = scene.step == scene.counted
    return scene.step + (scene.loaded or 0) if counts_from_zero else scene.step


def saved(failure: Failure) -> int | None:
    """The newest checkpoint that is known to be there: of this start, or the one that it began from."""
    known = [step for step in (failure.scene.saved, failure.scene.loaded) if step is not None]
    return max(known, default=None)


def knows_checkpoints(failures: Sequence[Failure]) -> bool:
    """Whether the job says when it has saved."""
    return any(saved(each) is not None for each in failures)


def since_progress(past: Sequence[Past], now: Failure) -> tuple[Past, ...]:
    """The newest entries of the ledger after which the job got no further: each was a restart without progress.

    Further is a newer checkpoint, or, where the job never said that it saved, a later step. Before a stop after which
    the job should not have been requeued nothing counts: who starts it nevertheless has changed something.
    """
    given_up = [at for at, each in enumerate(past, 1) if each.decision.status == DO_NOT_REQUEUE]
    past = past[max(given_up, default=0) :]
    failures = [*(each.failure for each in past), now]
    reached = saved if knows_checkpoints(failures) else position
    furthest, begun = -1, 0
    for index, each in enumerate(failures):
        here = reached(each)
        if here is not None and here > furthest:
            furthest, begun = here, index
    return tuple(past[begun:])


def same_fault(past: Sequence[Past], now: Failure) -> tuple[Past, ...]:
    """The entries with the same root, or with one that the same ladder of remedies is for, whichever rank met it.

    Any two failures of which nobody knows the cause are the same.
    """
    kind = treatment(now)
    alike = kind in _OF_ALL_RANKS
    return tuple(each for each in past if each.failure.root == now.root or (alike and treatment(each.failure) is kind))


def at_same_step(past: Sequence[Past], now: Failure) -> tuple[Past, ...]:
    """The entries at the step of ``now``, or before any step where it came to none."""
    here = position(now)
    return tuple(each for each in past if _close(position(each.failure), here))


def on_host(past: Sequence[Past], now: Failure, kinds: frozenset[Treatment]) -> tuple[Past, ...]:
    """The entries whose root was on the host of ``now`` and may have been that host's fault."""
    if now.host is None:
        return ()
    return tuple(each for each in past if each.failure.machine == now.machine and treatment(each.failure) in kinds)


def within(past: Sequence[Past], now: Failure, window_s: float) -> int:
    """How many failures there were in the last ``window_s`` seconds, ``now`` among them."""
    return 1 + sum(now.at - each.failure.at <= window_s for each in past)


def newest_of(past: Sequence[Past], kind: Treatment) -> Iterator[Failure]:
    """The failures that were treated so, the newest first."""
    return (each.failure for each in reversed(past) if treatment(each.failure) is kind)


def _close(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= SAME_STEP
