"""What a restarted job does differently, as the policy decided: written by the agent, obeyed inside of the job.

The agent of each node writes one file before it starts workers (``HOLDFAST_ADJUSTMENTS`` names it); every rank reads
the same one, so that nothing has to be agreed upon any more. Whoever trains without ``holdfast.loop`` may read it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.errors import BadValue

SCHEMA = "holdfast/adjustments/1"
MOST_BYTES = 1 << 20

_Step = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Window(msgspec.Struct, frozen=True):
    """Steps ``first`` to ``last``, both of them included."""

    first: _Step
    last: _Step


class Adjustments(msgspec.Struct, frozen=True, kw_only=True):
    """What to do differently; the defaults change nothing.

    ``micro_batches`` is the number of pieces that a rank's batch is worked through in (its gradients accumulate, so
    that the global batch stays the same), until step ``fewer_from`` is reached and one half of them is tried again.
    ``resume_before`` asks for the newest valid checkpoint of a step below it. The batches of ``skip`` are left out.
    ``loss_scale`` multiplies the scale of a GradScaler. ``loader_workers`` is the most that a data loader may have.
    ``reasons`` says why, one sentence each.
    """

    schema: str = SCHEMA
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 1
    fewer_from: _Step | None = None
    activation_checkpointing: bool = False
    loader_workers: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    resume_before: _Step | None = None
    skip: tuple[Window, ...] = ()
    loss_scale: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    reasons: tuple[str, ...] = ()

    def skips(self, step: int) -> bool:
        """Whether the batch of ``step`` is left out."""
        return any(window.first <= step <= window.last for window in self.skip)


NONE = Adjustments()


def encode(adjustments: Adjustments) -> bytes:
    """The content of the file."""
    return msgspec.json.format(msgspec.json.encode(adjustments)) + b"\n"


def read(path: Path | None) -> Adjustments:
    """The adjustments in a file; none where no file is named, or it is not there yet.

    Raises:
        BadValue: it cannot be read, is too large, or none that holdfast could have written.
    """
    try:
        with path.open("rb") as stream:  # type: ignore[union-attr]
            data = stream.read(MOST_BYTES + 1)
    except (AttributeError, FileNotFoundError):
        return NONE
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadValue(f"the adjustments {path}", why=why, next_step="delete the file") from error
    why = f"it has more than {MOST_BYTES >> 20} MiB" if len(data) > MOST_BYTES else ""
    try:
        found = msgspec.json.decode(data, type=Adjustments) if not why else NONE
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"the adjustments {path}", why=str(error), next_step="delete the file") from error
    if not why and found.schema != SCHEMA:
        why = f"its form is {found.schema[:40]!r}, not {SCHEMA!r}"
    if why:
        raise BadValue(f"the adjustments {path}", why=why, next_step="delete the file")
    return found
