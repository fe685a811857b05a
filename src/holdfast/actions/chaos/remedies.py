"""Faults after which the job is computed otherwise: fewer batches, smaller pieces, fewer ranks.

Each is held against a job in peace that computes the same from the same step on: it leaves out the same batches, goes
on in as many pieces, or is submitted again with as many ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.actions.chaos.scenario import Blow, Scenario, named

_NAN = named("loss-not-finite", "mixed-precision-nan")
#: Where a fault of the middle strikes, and the checkpoint that was declared before it.
_STEP, _SAVED = 16, 12


def scenarios() -> Iterator[Scenario]:
    """All of them."""
    for mode, first in (("ddp", _STEP), ("fsdp2", _STEP - 1)):  # weights that are gathered are wrong at once
        prefix = "" if mode == "ddp" else f"{mode}-"
        yield Scenario(
            name=f"{prefix}nan", fault="NaN in a collective, batches left out", moment="middle", mode=mode,
            inject=(f"corrupt@rank=1,step={_STEP}",), causes=_NAN, adjusted="skip",
            trainer=("--synchronous",), peace=("--leave-out", f"{first},{first + 1}"),
        )  # fmt: skip
    for mode in ("ddp", "fsdp2", "zero2"):
        prefix = "" if mode == "ddp" else f"{mode}-"
        yield Scenario(
            name=f"{prefix}device-memory-pieces", fault="device memory, smaller pieces", moment="middle", mode=mode,
            inject=(f"device-oom@rank=1,step={_STEP}",), causes=named("oom-on-one-rank-then-timeout"), culprit=1,
            adjusted="micro_batches", trainer=("--synchronous", "--parts"), peace=("--parts", "--halved-from",
                                                                                   str(_SAVED + 1)),
        )  # fmt: skip
    yield Scenario(
        name="two-hosts-fewer-ranks", fault="host lost for good, fewer ranks", moment="middle", hosts=2, elastic=True,
        blows=(Blow(kind="kill-host", step=_SAVED + 1),), causes=named("peer-lost"),
        trainer=("--synchronous", "--pace", "0.3"), apart_at=_SAVED,
    )  # fmt: skip
