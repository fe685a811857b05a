"""Show the outcome of a checklist: lines for a terminal, and an HTML page."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from holdfast.core.text import one_line, pluralize, shorten
from holdfast.preflight.checklists.items import CHECKLISTS
from holdfast.preflight.checklists.outcome import ItemOutcome
from holdfast.report.check_table import MARKS_OF_STATES, CheckState
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document

#: Maximum characters of a reason on the terminal.
_LONGEST = 240


def render_checklist(
    name: str, outcomes: Sequence[ItemOutcome], file: TextIO, width: int | None = None
) -> None:
    """Print the checklist: a line per item, and what to do about those that did not pass."""
    rows = []
    for each in outcomes:
        rows.append(ReportRow(each.title, mark=MARKS_OF_STATES[each.state], aside=each.id))
        if each.state not in (CheckState.OK, CheckState.ABSENT):
            rows.append(ReportRow(shorten(one_line(each.text), _LONGEST), style="aside"))
        if not each.passed:
            rows.append(ReportRow(each.action))
            if each.command:
                rows.append(ReportRow(each.command, style="command"))
    document = ReportDocument(
        "", _headline(name, outcomes), "plain", (ReportSection(name, tuple(rows)),), framed=False
    )
    draw_document(document, file, width)


def checklist_page(name: str, outcomes: Sequence[ItemOutcome]) -> str:
    """Return the HTML page, one file that loads nothing."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        name=name,
        occasion=CHECKLISTS[name],
        headline=_headline(name, outcomes),
        host=os.uname().nodename,
        time=time.strftime("%Y-%m-%d %H:%M:%S"),
        items=outcomes,
        marks=MARKS_OF_STATES,
    )


def _headline(name: str, outcomes: Sequence[ItemOutcome]) -> str:
    counts = Counter(each.state for each in outcomes)
    parts = [f"{counts[state]} {state}" for state in MARKS_OF_STATES if counts[state]]
    return f"checklist {name}: {pluralize(len(outcomes), 'item')}: {', '.join(parts)}"
