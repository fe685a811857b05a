"""The HTML page of a diagnosis; templates are loaded for it only."""

from __future__ import annotations

import time

from holdfast.core.text import pluralize
from holdfast.diagnose.pipeline import DiagnosisResult
from holdfast.diagnose.stacks import stack_tree
from holdfast.report.html import incident_page
from holdfast.report.timeline import Timeline
from holdfast.watcher.incidents import incident_timeline

#: Files listed on the page, of those read and of those ignored.
MAX_LISTED = 100


def write_diagnosis_page(result: DiagnosisResult) -> str:
    """Return the diagnosis as an HTML page, with a timeline of the ranks if there are traces."""
    table = result.summary
    timeline = (
        incident_timeline(table) if table is not None else Timeline((), time.time(), time.time())
    )
    run = {
        "read": pluralize(len(result.read), "file"),
        "ignored": pluralize(len(result.ignored), "file"),
    }
    run |= {item.name: f"{item.kind}, {item.bytes:,} bytes" for item in result.read[:MAX_LISTED]}
    run |= {item.name: f"ignored: {item.why}" for item in result.ignored[:MAX_LISTED]}
    samples = result.stacks.samples if result.stacks is not None else None
    return incident_page(
        result.verdict,
        timeline,
        title="diagnosis",
        facts=(*(table.facts if table is not None else ()), *result.collectives),
        run=run,
        tree=stack_tree.merge_stacks(samples.threads if samples is not None else {}),
        inconclusive=result.is_inconclusive,
    )
