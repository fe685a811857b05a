"""What a ledger tells, in words: who was started, what failed, what was decided and on what evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.actions.ledger import FILE, Event, Record
from holdfast.actions.policy import Failure
from holdfast.errors import MissingFile
from holdfast.report.ranksets import compress_ranks
from holdfast.report.text import duration, plural

#: Facts of a verdict that are shown; the incident's page has all.
MOST_FACTS = 4


def newest(base: Path) -> Path:
    """The run in ``base`` that began last, or ``base`` where it is a run's folder itself, or a job's history.

    Raises:
        MissingFile: there is none with a ledger.
    """
    if base.is_file() or (base / FILE).is_file() or any(base.glob("*.jsonl")):
        return base
    runs = sorted(path.parent for path in base.glob(f"*/{FILE}"))
    if not runs:
        raise MissingFile(base, why=f"no {FILE} is in it", next_step="give the folder of a run of `holdfast run`")
    return runs[-1]


def story(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """One event a record: ``at``, ``title``, and ``lines`` of (word, text)."""
    for record in records:
        title, lines = _TELLERS[record.event](record)
        yield {"at": record.at, "title": title, "lines": lines}


def _begun(record: Record) -> tuple[str, list[tuple[str, str]]]:
    return f"run begins on {record.host}: {record.text}", []


def _started(record: Record) -> tuple[str, list[tuple[str, str]]]:
    who = compress_ranks(record.ranks)
    nodes = plural(record.nodes or 1, "node")
    return f"generation {record.generation}: ranks {who} of {record.world_size} here, {nodes}", []


def _failed(record: Record) -> tuple[str, list[tuple[str, str]]]:
    failure, decision = record.failure, record.decision
    if failure is None or decision is None:
        return "a failure of which nothing is told", []
    lines = [("cause", f"{failure.code} {failure.cause}")] if failure.cause else []
    lines += [("progress", text)] if (text := _progress(failure)) else []
    lines += [("evidence", f"{fact.text} ({fact.origin})") for fact in failure.evidence[:MOST_FACTS]]
    lines += [("decision", decision.reason)]
    if record.folder:
        lines.append(("report", f"{record.folder}/report.html"))
    return failure.message or f"{plural(len(failure.dead), 'worker')} died, and there was no verdict", lines


def _progress(failure: Failure) -> str:
    scene = failure.scene
    told = [f"ran {duration(scene.ran_s)}"] if scene.ran_s else []
    told += [f"step {scene.step}"] if scene.step is not None else []
    told += [f"began from the checkpoint of step {scene.loaded}"] if scene.loaded is not None else []
    told += [f"saved step {scene.saved}"] if scene.saved is not None else []
    return ", ".join(told)


def _refused(record: Record) -> tuple[str, list[tuple[str, str]]]:
    facts = [fact for claim in record.findings for fact in claim.evidence]
    lines = [("evidence", f"{fact.text} ({fact.origin})") for fact in facts[:MOST_FACTS]]
    return f"{record.host} does not take part: {record.text}", lines


def _ended(record: Record) -> tuple[str, list[tuple[str, str]]]:
    return f"run ends with status {record.status}" + (f", {record.text}" if record.text else ""), []


_TELLERS = {
    Event.BEGUN: _begun, Event.STARTED: _started, Event.FAILED: _failed, Event.REFUSED: _refused, Event.ENDED: _ended,
}  # fmt: skip
