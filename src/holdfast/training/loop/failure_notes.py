"""Record failures seen by the loop in the rank's trace; the recovery policy reads them."""

from __future__ import annotations

import math
import time
from typing import Any

from holdfast import recorder
from holdfast.core.trace_file import TraceNote
from holdfast.training.loop.loss_monitor import LossAnomaly


def record_loss_anomaly(
    anomaly: LossAnomaly,
    step: int,
    own_loss: float | None,
    exception: str,
    micro_batches: int | None,
) -> None:
    """Record a loss anomaly, detected after ``step``.

    ``own`` is the loss that this rank reported for the last step concerned.
    """
    on_this_rank = own_loss is not None and (anomaly.what == "spike" or not math.isfinite(own_loss))
    value = anomaly.value if math.isfinite(anomaly.value) else None
    _record(
        what=anomaly.what,
        step=step,
        first=anomaly.first,
        last=anomaly.last,
        here=on_this_rank,
        value=value,
        usual=anomaly.usual,
        exception=exception,
        micro_batches=micro_batches,
    )


def record_out_of_memory(
    error: BaseException, step: int, micro_batches: int | None, *, device: bool
) -> None:
    """Record that device or host memory ran out in ``step``."""
    _record(
        what="memory",
        step=step,
        first=step,
        last=step,
        exception=type(error).__name__,
        text=str(error)[:500],
        micro_batches=micro_batches,
        device=device,
    )


def _record(**fields: Any) -> None:
    recorder.record_note(TraceNote.TROUBLE, {**fields, "time": time.time()})
