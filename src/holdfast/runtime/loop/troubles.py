"""Notes in the rank's box of what the loop saw go wrong: from them the policy chooses its remedy."""

from __future__ import annotations

import math
import time
from typing import Any

from holdfast.blackbox import Note
from holdfast.runtime import recorder
from holdfast.runtime.loop.losses import Bad


def note_loss(bad: Bad, step: int, own: float | None, exception: str, micro_batches: int | None) -> None:
    """The mean loss was no good, noticed after ``step``; ``own`` is what this rank told for the last step concerned."""
    here = own is not None and (bad.what == "spike" or not math.isfinite(own))
    value = bad.value if math.isfinite(bad.value) else None
    _note(what=bad.what, step=step, first=bad.first, last=bad.last, here=here, value=value, usual=bad.usual,
          exception=exception, micro_batches=micro_batches)  # fmt: skip


def note_memory(error: BaseException, step: int, micro_batches: int | None, *, device: bool) -> None:
    """Memory ran out in ``step``, of the device's or else of the host's."""
    _note(what="memory", step=step, first=step, last=step, exception=type(error).__name__, text=str(error)[:500],
          micro_batches=micro_batches, device=device)  # fmt: skip


def _note(**fields: Any) -> None:
    recorder.note_json(Note.TROUBLE, {**fields, "time": time.time()})
