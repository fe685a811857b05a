"""Adjustments of a restarted job, as decided by the recovery policy.

The agent of each node writes one file before it starts workers (``HOLDFAST_ADJUSTMENTS`` names it).
Every rank reads the same content, so the ranks need no further agreement. Scripts that do not use
``holdfast.loop`` may read it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import InvalidValue
from holdfast.core.text import os_error_reason

SCHEMA = "holdfast/adjustments/1"
MAX_BYTES = 1 << 20

_Step = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class StepWindow(msgspec.Struct, frozen=True):
    """Steps ``first`` to ``last``, inclusive."""

    first: _Step
    last: _Step


class Adjustments(msgspec.Struct, frozen=True, kw_only=True):
    """The adjustments; the defaults change nothing.

    ``micro_batches`` is the number of micro-batches that a rank's batch is split into. Gradients
    accumulate, so the global batch stays the same; from step ``fewer_from`` on, half of them are
    tried again. ``resume_before`` selects the newest valid checkpoint of an earlier step. Batches
    in ``skip`` are skipped. ``loss_scale`` multiplies the scale of a GradScaler. ``loader_workers``
    limits the workers of a data loader. ``reasons`` holds one sentence for each adjustment.
    """

    schema: str = SCHEMA
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 1
    fewer_from: _Step | None = None
    activation_checkpointing: bool = False
    loader_workers: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    resume_before: _Step | None = None
    skip: tuple[StepWindow, ...] = ()
    loss_scale: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    reasons: tuple[str, ...] = ()

    def skips(self, step: int) -> bool:
        """Return whether the batch of ``step`` is skipped."""
        return any(window.first <= step <= window.last for window in self.skip)


NO_ADJUSTMENTS = Adjustments()


def encode_adjustments(adjustments: Adjustments) -> bytes:
    """Return the content of the file."""
    return msgspec.json.format(msgspec.json.encode(adjustments)) + b"\n"


def read_adjustments(path: Path | None) -> Adjustments:
    """Read the adjustments; the defaults if ``path`` is None or does not exist.

    Raises:
        InvalidValue: the file cannot be read, is too large, or has an unsupported format.
    """

    def invalid(problem: str) -> InvalidValue:
        return InvalidValue(
            f"the adjustments {path}", why=f"it {problem}", next_step="delete the file"
        )

    if path is None:
        return NO_ADJUSTMENTS
    try:
        data = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return NO_ADJUSTMENTS
    except OSError as error:
        raise invalid(f"cannot be read: {os_error_reason(error)}") from error
    return decode_document(data, Adjustments, schema=SCHEMA, max_bytes=MAX_BYTES, error=invalid)
