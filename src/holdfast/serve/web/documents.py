"""The JSON documents of the page's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.findings import Finding, Verdict
from holdfast.core.live_state import SERIES_FULL, SERIES_UNKNOWN, LiveState, SeriesPoint
from holdfast.core.text import shorten
from holdfast.serve.live.reader import LiveReading
from holdfast.serve.live.reports import CommandReport
from holdfast.serve.live.runs import RunIncident, RunPast

MAX_EVIDENCE, MAX_TEXT = 8, 2000


def live_document(reading: LiveReading, state: bytes) -> bytes:
    """Return the live state with what was wrong; ``state`` is the encoded one."""
    values = msgspec.structs.asdict(reading)
    return msgspec.json.encode(values | {"state": msgspec.Raw(state)})


def past_document(
    past: RunPast, reports: Sequence[CommandReport] = (), problems: Sequence[str] = ()
) -> bytes:
    """Return timeline, incidents, findings and reports, without what the incident's page shows."""
    return msgspec.json.encode(
        {
            "head": past.head,
            "events": past.events,
            "incidents": [_incident(each) for each in past.incidents],
            "findings": [_finding(each) for each in past.findings],
            "reports": [_report(each) for each in reports],
            "problems": (*past.problems, *problems),
        }
    )


def _incident(incident: RunIncident) -> dict[str, Any]:
    verdict = incident.verdict or Verdict(question="")
    return {
        "number": incident.number,
        "has_page": incident.has_page,
        "question": verdict.question,
        "root": None if verdict.root is None else _finding(verdict.root),
        "suspects": [_finding(each) for each in verdict.suspects[:MAX_EVIDENCE]],
        "consequences": len(verdict.consequences),
    }


def _report(report: CommandReport) -> dict[str, Any]:
    values = msgspec.structs.asdict(report)
    return values | {
        "findings": [_finding(each) for each in report.findings],
        "unseen": [shorten(text, MAX_TEXT) for text in report.unseen],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "cause": finding.cause,
        "level": finding.level,
        "confidence": finding.confidence,
        "message": shorten(finding.message, MAX_TEXT),
        "rank": finding.subject.rank,
        "host": finding.subject.host,
        "evidence": [shorten(fact.text, MAX_TEXT) for fact in finding.evidence[:MAX_EVIDENCE]],
        "remedy": shorten(finding.remedies[0].text, MAX_TEXT) if finding.remedies else "",
    }


def series_document(points: Sequence[SeriesPoint]) -> bytes:
    """Return the series as columns; the bytes are in base64."""
    return msgspec.json.encode(
        {
            "full": SERIES_FULL,
            "unknown": SERIES_UNKNOWN,
            "at": [point.at for point in points],
            "generation": [point.generation for point in points],
            "world_size": [point.world_size for point in points],
            "step": [point.step for point in points],
            "rate": [point.rate for point in points],
            "rates": [point.rates for point in points],
            "waits": [point.waits for point in points],
        }
    )


def rank_document(state: LiveState, at: int) -> dict[str, Any]:
    """Return one rank with its texts instead of indices."""
    ranks = state.ranks
    values = {name: getattr(ranks, name)[at] for name in ranks.__struct_fields__}
    tables = {
        "node": state.nodes,
        "life": state.lives,
        "phase": state.phases,
        "call": state.calls,
        "wait": state.waits,
    }
    for name, table in tables.items():
        values[name] = table[values[name]] if values[name] >= 0 else None
    return values
