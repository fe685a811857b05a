"""Whether training may begin at step 0: only if no checkpoint can exist, or if the user allows it.

`holdfast run` keeps a record of the newest checkpoint per folder in its history, apart from the
checkpoints: an unmounted folder then does not look like a new job.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import xxhash

from holdfast.core import settings
from holdfast.core.atomic_files import write_atomic
from holdfast.core.checkpoint_manifest import Manifest
from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import HoldfastError
from holdfast.training.checkpoint.job_identity import run_name

_log = logging.getLogger("holdfast.checkpoint")
_SCHEMA, _MAX_BYTES = "holdfast/checkpoint-record/1", 1 << 16
_FOLDER = "checkpoints"
ALLOW = "start with --allow-fresh-start to train from step 0"


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint that was saved in ``folder``, by which run, at which Unix time."""

    schema: str = _SCHEMA
    folder: str
    step: int
    at: float
    run: str = ""


def record_checkpoint(root: Path, manifest: Manifest) -> None:
    """Record a committed checkpoint in the history of runs, if there is one."""
    path = _record_path(root)
    if path is None:
        return
    record = CheckpointRecord(
        folder=str(root), step=manifest.step, at=manifest.at, run=manifest.run
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, msgspec.json.encode(record))
    except (OSError, HoldfastError) as error:
        _log.warning("cannot record the checkpoint of step %d: %s", manifest.step, error)


def refusal(
    root: Path, unreachable: Sequence[str], before: int | None, *, allowed: bool
) -> str | None:
    """Return why training must not begin at step 0 although no checkpoint was found; or None.

    ``unreachable``: one sentence for each backend or checkpoint that could not be read. A recorded
    step from ``before`` on was discarded by the recovery policy.
    """
    record = _read_record(root)
    if record is not None and before is not None and record.step >= before:
        record = None
    own_run = record is not None and record.run and record.run == run_name()
    if (record is None and not unreachable) or (allowed and not own_run):
        return None
    found = f"no checkpoint was found in {root}"
    if record is not None:
        found += f", but step {record.step} was saved there" + (" by this run" if own_run else "")
    if unreachable:
        found += f"; could not be read: {'; '.join(unreachable)}"
    advice = "" if own_run else f", or {ALLOW}"
    return f"{found}: mount the folder, restore access to the copies{advice}"


def _record_path(root: Path) -> Path | None:
    history = settings.read_path("HOLDFAST_HISTORY")
    name = xxhash.xxh3_64_hexdigest(str(root).encode())
    return history / _FOLDER / f"{name}.json" if history is not None else None


def _read_record(root: Path) -> CheckpointRecord | None:
    path = _record_path(root)
    if path is None or not path.exists():
        return None
    try:
        return decode_document(
            read_bounded(path, _MAX_BYTES),
            CheckpointRecord,
            schema=_SCHEMA,
            max_bytes=_MAX_BYTES,
            error=ValueError,
        )
    except (OSError, ValueError) as error:
        _log.warning("%s %s", path, error)
        return None
