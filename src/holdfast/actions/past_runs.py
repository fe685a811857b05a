"""What a job keeps of its earlier runs: a history that outlives them, for jobs that are requeued or started by hand.

A history is a folder on a disk that lasts, with a copy of the ledger of every host. A run that ends well ends it: what
comes after is another job. What only was told, and preemptions, are no failures, and count for nothing later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast import adjustments
from holdfast.actions import ledger
from holdfast.actions.ledger import Event, Record
from holdfast.actions.policy import Course, Past, remedies
from holdfast.adjustments import Adjustments
from holdfast.errors import BadValue, MissingFile

#: In the folder of all runs: histories that nobody has named.
JOBS = "jobs"


def of_slurm(environ: Mapping[str, str], base: Path) -> Path | None:
    """The history of this job of Slurm, which keeps its number when it is requeued; None outside of Slurm."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "batch")
    return base / JOBS / f"slurm-{job}.{step}" if job.isdecimal() and step.isalnum() else None


def folder(path: Path) -> Path:
    """The folder of a history, made where it is not there.

    Raises:
        BadValue: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{path}: {(error.strerror or str(error)).lower()}"
        raise BadValue("--history", why=why, next_step="name a folder that can be written to") from error
    return path


def unfinished(path: Path, command: str | None = None) -> tuple[Record, ...]:
    """The lines since the last run that ended well; none where the last run was of another ``command``."""
    try:
        records = ledger.read(path)
    except MissingFile:
        return ()
    ended = max((at for at, each in enumerate(records) if each.event is Event.ENDED and each.status == 0), default=-1)
    open_ones = records[ended + 1 :]
    begun = [each.text for each in open_ones if each.event is Event.BEGUN]
    return open_ones if command is None or command in begun[-1:] else ()


def failures(records: Sequence[Record]) -> tuple[Past, ...]:
    """What counts of earlier runs, oldest first."""
    return tuple(each for each in ledger.past(records)
                 if each.decision.course is not Course.REPORT and each.failure.scene.preempted is None)  # fmt: skip


def adjusted(records: Sequence[Record]) -> Adjustments:
    """What the next start does differently.

    To go back is asked for only where nothing ran since the decision: a start of which nothing is known may have
    declared a newer checkpoint.
    """
    past = ledger.past(records)
    wanted = remedies.latest([each for each in past if each.decision.restarts])
    last = max((at for at, each in enumerate(records) if each.event is Event.FAILED), default=-1)
    if any(each.event is Event.STARTED for each in records[last + 1 :]):
        return replace(wanted, resume_before=None, loss_scale=1.0)
    return remedies.carried(wanted, past[-1].failure) if past else adjustments.NONE
