"""Read a run folder of `holdfast run` and return its rows of the history store."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import MissingFile
from holdfast.core.failures import JobFailure, RecoveryAction, RecoveryDecision
from holdfast.core.ledger import FILE, LedgerEvent, LedgerRecord, read_ledger
from holdfast.core.redaction.redact_command import redact_arguments
from holdfast.core.text import one_line, shorten
from holdfast.serve.store.tables import DecisionRow, IncidentRow, RunRow, StartRow

MAX_TEXT = 2000


@dataclass(frozen=True)
class RunRows:
    """The rows of one run folder, not connected to each other or to a session."""

    run: RunRow
    starts: tuple[StartRow, ...]
    incidents: tuple[IncidentRow, ...]


def find_run_folders(folder: Path) -> tuple[Path, ...]:
    """Return ``folder`` if it is a run folder, else the run folders in it, oldest first.

    Raises:
        MissingFile: there is no run folder.
    """
    if (folder / FILE).is_file():
        return (folder,)
    runs = tuple(sorted(path.parent for path in folder.glob(f"*/{FILE}")))
    if not runs:
        why = f"it contains no {FILE}" if folder.exists() else MissingFile.why
        raise MissingFile(folder, why=why, next_step="pass a run folder of `holdfast run`")
    return runs


def read_run(folder: Path) -> RunRows | None:
    """Read the ledger of a run folder; None if its workers never started.

    Raises:
        UsageError: the ledger cannot be read.
    """
    records = sorted(read_ledger(folder), key=lambda record: record.at)
    started = [record for record in records if record.event is LedgerEvent.STARTED]
    if not started:
        return None
    begun = next((each for each in records if each.event is LedgerEvent.BEGUN), records[0])
    ended = next((each for each in records[::-1] if each.event is LedgerEvent.ENDED), None)
    name = started[0].job or folder.absolute().name
    run = RunRow(
        name=name,
        folder=one_line(str(folder.absolute())),
        command=_redacted(begun.text),
        host=one_line(begun.host),
        began=begun.at,
        seen=records[-1].at,
        ended=ended.at if ended else None,
        status=ended.status if ended else None,
        world_size=max(record.world_size or 1 for record in started),
        nodes=max(record.nodes or 1 for record in started),
    )
    return RunRows(run, tuple(_starts(name, started)), tuple(_incidents(name, records)))


def _starts(run: str, started: Sequence[LedgerRecord]) -> Iterator[StartRow]:
    count: Counter[int] = Counter()
    for record in started:
        yield StartRow(
            run=run,
            generation=record.generation,
            number=count[record.generation],
            at=record.at,
            world_size=record.world_size or 1,
            nodes=record.nodes or 1,
        )
        count[record.generation] += 1


def _incidents(run: str, records: Sequence[LedgerRecord]) -> Iterator[IncidentRow]:
    for index, record in enumerate(records):
        if record.failure is None or record.decision is None:
            continue
        earlier = [each for each in records[:index] if each.event is LedgerEvent.STARTED]
        later = (each.at for each in records[index:] if each.event is LedgerEvent.STARTED)
        recovered = None
        if record.decision.action is RecoveryAction.REPORT:
            recovered = record.at  # the job continued
        elif record.decision.restarts:
            recovered = next(later, None)
        yield _incident(run, record, earlier[-1] if earlier else record, recovered)


def _incident(
    run: str, record: LedgerRecord, start: LedgerRecord, recovered: float | None
) -> IncidentRow:
    failure, decision = record.failure, record.decision
    assert failure is not None and decision is not None  # noqa: S101, PT018 - the caller checked
    state = failure.job_state
    return IncidentRow(
        run=run,
        at=failure.at,
        generation=failure.generation,
        code=failure.code,
        cause=failure.cause,
        level=str(failure.level),
        message=_text(failure.message),
        rank=failure.rank,
        host=failure.host and one_line(failure.host),
        file=failure.file and _text(failure.file),
        line=failure.line,
        hang=failure.hang,
        preempted=state.preempted is not None,
        dead=list(failure.dead),
        world_size=start.world_size or 1,
        step=state.step,
        saved=state.saved,
        started=min(start.at, failure.at),
        progressed=min(max(state.progressed or failure.at, start.at), failure.at),
        saved_at=state.saved_at,
        recovered=recovered,
        folder=record.folder and one_line(record.folder),
        decision=_decision(run, failure, decision),
    )


def _decision(run: str, failure: JobFailure, decision: RecoveryDecision) -> DecisionRow:
    return DecisionRow(
        run=run,
        at=failure.at,
        generation=failure.generation,
        action=str(decision.action),
        reason=_text(decision.reason),
        excluded=[one_line(host) for host in decision.excluded],
        suspects=[one_line(host) for host in decision.suspects],
        delay_s=decision.delay_s,
        status=decision.status,
    )


def _redacted(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:  # not written by shlex.join
        words = command.split()
    return _text(shlex.join(redact_arguments(words)))


def _text(text: str) -> str:
    """Return printable text: databases refuse NUL and lone surrogates."""
    return shorten(one_line(text), MAX_TEXT)
