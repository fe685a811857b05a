"""Scenarios whose recovery changes the computation: skipped batches, micro-batches, fewer ranks.

Each is compared with an undisturbed run that computes the same from the same step on: it skips the
same batches, uses as many micro-batches, or is resubmitted with as many ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.memory.oom_on_one_rank_then_timeout import OOM_ON_ONE_RANK_THEN_TIMEOUT
from holdfast.causes.numerics.mixed_precision_nan import MIXED_PRECISION_NAN
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.chaos.rank_faults import prefix
from holdfast.chaos.scenario import ExternalFault, Scenario, name_set

_NAN = name_set("loss-not-finite", MIXED_PRECISION_NAN.name)
#: Step of the fault, and of the last checkpoint committed before it.
_STEP, _SAVED = 16, 12


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios."""
    # FSDP gathers corrupt weights in the same step.
    for mode, first in (("ddp", _STEP), ("fsdp2", _STEP - 1)):
        yield Scenario(
            name=f"{prefix(mode, 1)}nan",
            fault="NaN in a collective, batches skipped",
            mode=mode,
            inject=(f"corrupt@rank=1,step={_STEP}",),
            causes=_NAN,
            adjusted="skip",
            trainer=("--synchronous",),
            undisturbed_options=("--skip-steps", f"{first},{first + 1}"),
        )
    for mode in ("ddp", "fsdp2", "zero2"):
        yield Scenario(
            name=f"{prefix(mode, 1)}device-memory-pieces",
            fault="device memory, smaller micro-batches",
            mode=mode,
            inject=(f"device-oom@rank=1,step={_STEP}",),
            causes=name_set(OOM_ON_ONE_RANK_THEN_TIMEOUT.name),
            faulty_rank=1,
            adjusted="micro_batches",
            trainer=("--synchronous", "--micro-batches"),
            undisturbed_options=("--micro-batches", "--halved-from", str(_SAVED + 1)),
        )
    yield Scenario(
        name="two-hosts-fewer-ranks",
        fault="host lost permanently, fewer ranks",
        hosts=2,
        elastic=True,
        external_faults=(ExternalFault(kind="kill-host", step=_SAVED + 1),),
        causes=name_set(PEER_LOST.name),
        trainer=("--synchronous", "--pace", "0.3"),
        shrink_after=_SAVED,
    )
