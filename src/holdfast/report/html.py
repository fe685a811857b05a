"""Render the incident page: one self-contained HTML file that makes no network requests."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.core.findings import Fact, Level, Verdict
from holdfast.core.rank_sets import compress_ranks, describe_ranks, fold_findings, rank_label
from holdfast.core.text import escape_invisible, format_duration, format_percent, one_line
from holdfast.report.incident_chart import draw_chart
from holdfast.report.lanes import in_flight
from holdfast.report.stack_tree import ThreadTree
from holdfast.report.timeline import Timeline, TimelineLane

#: Maximum table rows and stack groups; a line states how many more exist.
ROWS = 200
STACKS = 24
STACK_LINES = 80

SYMBOLS = {Level.ERROR: "✗", Level.WARNING: "⚠", Level.NOTE: "•", Level.UNKNOWN: "?"}


class FactRow(msgspec.Struct, frozen=True):
    """One fact shared by ``ranks`` and ``hosts``; ``time`` is the earliest observation (Unix s)."""

    text: str
    origin: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    time: float | None


class SharedStack(msgspec.Struct, frozen=True):
    """One stack, innermost frame first, and its ranks.

    The last ``common`` frames equal those of the largest group.
    """

    ranks: tuple[int, ...]
    lines: tuple[str, ...]
    common: int
    hidden: int


def incident_page(  # noqa: PLR0913 - keyword-only parts of a page
    verdict: Verdict,
    timeline: Timeline,
    *,
    title: str,
    facts: Sequence[Fact] = (),
    stacks: Mapping[int, Sequence[str]] | None = None,
    run: Mapping[str, str] | None = None,
    tree: Sequence[ThreadTree] = (),
    inconclusive: bool = False,
) -> str:
    """Return the page as text, to be written as UTF-8.

    ``title`` names the incident (``incident 0``), ``facts`` describe hosts, versions and
    environment, ``stacks`` maps ranks to Python frames, innermost first (default: those of the
    lanes), ``run`` is shown key by key, ``tree`` holds stacks merged over ranks. ``inconclusive``:
    a missing root does not mean that nothing failed. All text is escaped; the size is bounded for
    any number of ranks.
    """
    script = template_source("incident.js")
    page = (
        template_environment()
        .get_template("incident.html")
        .render(
            title=title,
            verdict=verdict,
            head=_head(verdict, inconclusive=inconclusive),
            policy=_policy(script),
            style=Markup(template_source("incident.css")),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            timeline=timeline,
            chart=draw_chart(
                timeline, verdict.root.subject.rank if verdict.root else None, _named(verdict)
            ),
            consequences=fold_findings(verdict.consequences),
            suspects=fold_findings(verdict.suspects),
            evidence=_fact_rows(verdict.root.evidence) if verdict.root else [],
            facts=_fact_rows(facts),
            stacks=_share_stacks(stacks or _stacks_of(timeline.lanes)),
            run=run or {},
            tree=tree,
            rows=ROWS,
            stacks_shown=STACKS,
        )
    )
    return page + "\n"


@cache
def _templates() -> PackageLoader:
    return PackageLoader("holdfast.report")


@cache
def template_environment() -> Environment:
    """Return the jinja2 environment: every text is escaped, invisible characters become visible."""
    environment = Environment(
        loader=_templates(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    environment.filters.update(
        ranks=rank_label,
        all_ranks=compress_ranks,
        describe_ranks=describe_ranks,
        duration=format_duration,
        percent=format_percent,
        clock=_clock,
        hosts=_hosts,
        in_flight=in_flight,
        one_line=one_line,
    )
    return environment


def _plain(value: Any) -> Any:
    """Make invisible characters of an expression visible; round floats to 1 digit."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return escape_invisible(value)
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


@cache
def template_source(name: str) -> str:
    """Return the source of a file next to the templates."""
    return _templates().get_source(template_environment(), name)[0]


def _policy(script: str) -> str:
    """Return the content security policy: load nothing, run only the script with this checksum."""
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{checksum}'"
    )


def _head(verdict: Verdict, *, inconclusive: bool) -> dict[str, str]:
    """Return symbol, tone and the headline in two parts: what happened and where."""
    if verdict.root is not None:
        what, where = _halves(one_line(verdict.root.message))
        return {
            "symbol": SYMBOLS[verdict.root.level],
            "tone": str(verdict.root.level),
            "what": what,
            "where": where,
        }
    if verdict.suspects:
        return {
            "symbol": "?",
            "tone": "unknown",
            "what": "no single root cause",
            "where": "",
        }
    if inconclusive:
        return {
            "symbol": "?",
            "tone": "unknown",
            "what": "inconclusive",
            "where": "not enough evidence, see 'Not checked'",
        }
    limits = "in the available evidence" if verdict.unseen else ""
    return {"symbol": "✓", "tone": "fine", "what": "nothing failed", "where": limits}


def _halves(sentence: str) -> tuple[str, str]:
    """Split a sentence at its first dash, colon or semicolon: headline and second line."""
    broken = re.split(r" — |: |; ", sentence, maxsplit=1)
    return broken[0], broken[1] if len(broken) > 1 else ""


def _named(verdict: Verdict) -> set[int]:
    return {claim.subject.rank for claim in verdict.suspects if claim.subject.rank is not None}


def _fact_rows(facts: Sequence[Fact]) -> list[FactRow]:
    """Merge facts shared by ranks or hosts into one row, in order of first appearance."""
    folds: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        folds.setdefault((fact.text, fact.origin), []).append(fact)
    return [
        FactRow(
            text,
            origin,
            tuple(sorted({fact.rank for fact in same if fact.rank is not None})),
            tuple(sorted({fact.host for fact in same if fact.host})),
            min((fact.time for fact in same if fact.time is not None), default=None),
        )
        for (text, origin), same in folds.items()
    ]


def _stacks_of(lanes: Sequence[TimelineLane]) -> dict[int, Sequence[str]]:
    return {lane.rank: lane.stack_lines for lane in lanes if lane.stack_lines}


def _share_stacks(stacks: Mapping[int, Sequence[str]]) -> list[SharedStack]:
    """Group ranks by identical stacks, smallest group first: the outlier is usually the culprit."""
    folds: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(stacks):
        folds.setdefault(tuple(stacks[rank]), []).append(rank)
    usual = max(folds, key=lambda lines: len(folds[lines]), default=())
    rarest_first = sorted(folds.items(), key=lambda fold: (len(fold[1]), fold[1][0]))
    return [
        SharedStack(
            tuple(ranks),
            lines[:STACK_LINES],
            _common_end(lines, usual) if lines != usual else 0,
            max(0, len(lines) - STACK_LINES),
        )
        for lines, ranks in rarest_first
    ]


def _common_end(lines: Sequence[Hashable], others: Sequence[Hashable]) -> int:
    """Count the outermost frames that both stacks share."""
    count = 0
    for mine, other in zip(reversed(lines), reversed(others), strict=False):
        if mine != other:
            break
        count += 1
    return count


def _hosts(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")


def _clock(time: float | None, form: str = "%H:%M:%S.%f") -> str:
    """Format a Unix time as UTC with milliseconds; empty if it is missing or out of range."""
    if time is None or not math.isfinite(time):
        return ""
    try:
        text = datetime.fromtimestamp(time, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""
    return text[:-3] if form.endswith("%f") else text
