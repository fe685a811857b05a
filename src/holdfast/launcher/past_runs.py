"""Earlier runs of a job: a history that outlives a run, for jobs that are requeued or resubmitted.

A history is a folder on a persistent disk with a copy of the ledger of every host. It ends with a
successful run; a later run is another job. Decisions that changed nothing, and preemptions, do not
count as failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast.core import ledger
from holdfast.core.adjustments import NO_ADJUSTMENTS, Adjustments
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.failures import PastFailure, RecoveryAction
from holdfast.core.ledger import LedgerEvent, LedgerRecord
from holdfast.core.text import os_error_reason
from holdfast.launcher.policy import remedies

#: Subfolder of the run directory for histories without ``--history``.
JOBS = "jobs"


def slurm_history(environ: Mapping[str, str], base: Path) -> Path | None:
    """Return the history of this Slurm job, which keeps its number when requeued; else None."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "batch")
    return base / JOBS / f"slurm-{job}.{step}" if job.isdecimal() and step.isalnum() else None


def create_history(path: Path) -> Path:
    """Create the folder of a history if it does not exist, and return it.

    Raises:
        InvalidValue: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{path}: {os_error_reason(error)}"
        raise InvalidValue("--history", why=why, next_step="pass a writable folder") from error
    return path


def read_unfinished(path: Path, command: str | None = None) -> tuple[LedgerRecord, ...]:
    """Return the records since the last successful run.

    None if the last run had another ``command``.
    """
    try:
        records = ledger.read_ledger(path)
    except MissingFile:
        return ()
    succeeded = [
        index
        for index, record in enumerate(records)
        if record.event is LedgerEvent.ENDED and record.status == 0
    ]
    unfinished = records[max(succeeded, default=-1) + 1 :]
    commands = [record.text for record in unfinished if record.event is LedgerEvent.BEGUN]
    return unfinished if command is None or command in commands[-1:] else ()


def earlier_failures(records: Sequence[LedgerRecord]) -> tuple[PastFailure, ...]:
    """Return the failures of earlier runs that count, oldest first."""
    return tuple(
        each
        for each in ledger.past_failures(records)
        if each.decision.action is not RecoveryAction.REPORT
        and each.failure.job_state.preempted is None
    )


def next_adjustments(records: Sequence[LedgerRecord]) -> Adjustments:
    """Return the adjustments of the next start.

    Resuming from an older checkpoint applies only if nothing ran since that decision: a start
    whose outcome is unknown may have committed a newer checkpoint.
    """
    past = ledger.past_failures(records)
    wanted = remedies.newest_adjustments([each for each in past if each.decision.restarts])
    last = next(
        (
            record.event
            for record in reversed(records)
            if record.event in (LedgerEvent.FAILED, LedgerEvent.STARTED)
        ),
        None,
    )
    if last is LedgerEvent.STARTED:
        return replace(wanted, resume_before=None, loss_scale=1.0)
    return remedies.carry_over(wanted, past[-1].failure) if past else NO_ADJUSTMENTS
