"""The timeline of a run across restarts (``holdfast history``): starts, failures, decisions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from holdfast.core.errors import MissingFile
from holdfast.core.failures import JobFailure
from holdfast.core.findings import Fact
from holdfast.core.ledger import FILE, LedgerEvent, LedgerRecord
from holdfast.core.rank_sets import compress_ranks
from holdfast.core.text import encodable, format_duration, one_line, pluralize

#: Number of facts shown per failure; the incident report has all.
MAX_FACTS = 4


class TimelineEvent(NamedTuple):
    """One event at ``at`` (Unix seconds), with ``details`` as (label, text)."""

    at: float
    title: str
    details: Sequence[tuple[str, str]] = ()


def find_newest_run(base: Path) -> Path:
    """Return the newest run in ``base``, or ``base`` itself if it is a run folder or a history.

    Raises:
        MissingFile: there is no run with a ledger.
    """
    if base.is_file() or (base / FILE).is_file() or any(base.glob("*.jsonl")):
        return base
    runs = sorted(path.parent for path in base.glob(f"*/{FILE}"))
    if not runs:
        why = f"it contains no {FILE}" if base.exists() else MissingFile.why
        raise MissingFile(base, why=why, next_step="pass a run folder of `holdfast run`")
    return runs[-1]


def describe_records(records: Iterable[LedgerRecord]) -> Iterator[TimelineEvent]:
    """Yield one event per record."""
    for record in records:
        title, details = _DESCRIPTIONS[record.event](record)
        yield TimelineEvent(record.at, title, details)


def print_timeline(events: Iterable[TimelineEvent], out: TextIO) -> None:
    """Print one paragraph per event, oldest first."""
    begun: float | None = None
    for event in events:
        begun = event.at if begun is None else begun
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
        elapsed_s = event.at - begun
        elapsed = "" if elapsed_s < 0.5 else f"+{format_duration(elapsed_s)}"
        lines = [f"{clock}  {elapsed:<12} {one_line(event.title)}"]
        lines += [f"{'':23}{label:>12}  {one_line(text)}" for label, text in event.details]
        out.writelines(encodable(line, out.encoding or "utf-8") + "\n" for line in lines)


_Description = tuple[str, list[tuple[str, str]]]


def _describe_start_of_run(record: LedgerRecord) -> _Description:
    return f"run started on {record.host}: {record.text}", []


def _describe_start_of_workers(record: LedgerRecord) -> _Description:
    ranks, nodes = compress_ranks(record.ranks), pluralize(record.nodes or 1, "node")
    return f"generation {record.generation}: ranks {ranks} of {record.world_size} here, {nodes}", []


def _describe_failure(record: LedgerRecord) -> _Description:
    failure, decision = record.failure, record.decision
    if failure is None or decision is None:
        return "a failure without details", []
    details = [("cause", f"{failure.code} {failure.cause}")] if failure.cause else []
    if progress := _describe_progress(failure):
        details.append(("progress", progress))
    details += _evidence(failure.evidence)
    details.append(("decision", decision.reason))
    if record.folder:
        details.append(("report", f"{record.folder}/report.html"))
    dead = pluralize(len(failure.dead), "worker")
    return failure.message or f"{dead} died; there was no verdict", details


def _describe_progress(failure: JobFailure) -> str:
    state = failure.job_state
    parts = [f"ran {format_duration(state.ran_s)}"] if state.ran_s else []
    for text, step in (
        ("step", state.step),
        ("resumed from step", state.loaded),
        ("saved step", state.saved),
    ):
        parts += [f"{text} {step}"] if step is not None else []
    return ", ".join(parts)


def _describe_exclusion(record: LedgerRecord) -> _Description:
    facts = [fact for finding in record.findings for fact in finding.evidence]
    return f"{record.host} is excluded from the job: {record.text}", _evidence(facts)


def _describe_end(record: LedgerRecord) -> _Description:
    suffix = f", {record.text}" if record.text else ""
    return f"run ended with status {record.status}{suffix}", []


def _evidence(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    return [("evidence", f"{fact.text} ({fact.origin})") for fact in facts[:MAX_FACTS]]


_DESCRIPTIONS: Mapping[LedgerEvent, Callable[[LedgerRecord], _Description]] = {
    LedgerEvent.BEGUN: _describe_start_of_run,
    LedgerEvent.STARTED: _describe_start_of_workers,
    LedgerEvent.FAILED: _describe_failure,
    LedgerEvent.REFUSED: _describe_exclusion,
    LedgerEvent.ENDED: _describe_end,
}
