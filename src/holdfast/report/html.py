"""Render the incident page: one self-contained HTML file that makes no network requests."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from holdfast.causes.translations import translated_summary, translator
from holdfast.core.findings import Fact, Level, Verdict
from holdfast.core.rank_sets import compress_ranks, describe_ranks, fold_findings, rank_label
from holdfast.core.text import (
    escape_invisible,
    format_duration,
    format_percent,
    one_line,
    pluralize,
)
from holdfast.report.incident_chart import IncidentChart, draw_chart
from holdfast.report.page_text import (
    breakable,
    clip,
    render_code,
    render_command,
    sentence,
    short_place,
)
from holdfast.report.source_windows import SourceWindow
from holdfast.report.stack_tree import ThreadTree
from holdfast.report.timeline import Timeline, TimelineLane
from holdfast.report.verdict_summary import describe_subject, other_causes, verdict_summary

#: Maximum table rows and stack groups; a line states how many more exist.
ROWS = 200
STACKS = 24
STACK_LINES = 80
#: Maximum characters of the headline, of a sentence below it, and of the whole message.
MAX_HEADLINE = 240
MAX_SENTENCE = 600
MAX_MESSAGE = 20_000
#: A headline from this length on is set in smaller type.
LONG_HEADLINE = 72
#: A shorter time without progress is not mentioned: the job failed, it did not hang.
NOTABLE_SILENCE_S = 1.0
#: Consequences in the paragraph below the headline.
MAX_EFFECTS = 2
MAX_EFFECT = 180

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
    source: Sequence[SourceWindow] = (),
    tree: Sequence[ThreadTree] = (),
    inconclusive: bool = False,
) -> str:
    """Return the page as text, to be written as UTF-8.

    ``title`` names the incident (``incident 0``), ``facts`` describe hosts, versions and
    environment, ``stacks`` maps ranks to Python frames, innermost first (default: those of the
    lanes), ``run`` is shown key by key, ``source`` holds the cited source lines, ``tree`` stacks
    merged over ranks. ``inconclusive``: a missing root does not mean that nothing failed. All text
    is escaped; the size is bounded for any number of ranks and any length of the texts.
    """
    script = template_source("incident.js")
    chart = draw_chart(
        timeline, verdict.root.subject.rank if verdict.root else None, _named(verdict)
    )
    head = _head(verdict, inconclusive=inconclusive)
    page = (
        template_environment()
        .get_template("incident.html")
        .render(
            title=title,
            verdict=verdict,
            head=head,
            explanation=_explanation(verdict),
            paragraph=_paragraph(verdict, head["where"], chart, run or {}),
            message=_whole_message(verdict),
            summary=_summary(verdict, head, (title, _moment(timeline.end or None)), source),
            source=source,
            policy=_policy(script),
            style=Markup(template_source("incident.css") + template_source("timeline.css")),  # noqa: S704 - our own files
            script=Markup(script),  # noqa: S704 - our own file
            timeline=timeline,
            chart=chart,
            consequences=fold_findings(verdict.consequences),
            suspects=other_causes(verdict),
            evidence=_fact_rows(verdict.root.evidence) if verdict.root else [],
            facts=_fact_rows(facts),
            stacks=_share_stacks(stacks or _stacks_of(timeline.lanes)),
            run=run or {},
            tree=tree,
            long_headline=LONG_HEADLINE,
            max_headline=MAX_HEADLINE,
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
        moment=_moment,
        hosts=_hosts,
        one_line=one_line,
        code=render_code,
        command=render_command,
        breakable=breakable,
        distinct=_distinct,
        clip=clip,
        sentence=sentence,
        short_place=short_place,
        plural=pluralize,
        subject=describe_subject,
        translated=_translated,
    )
    return environment


def _plain(value: Any) -> Any:
    """Make invisible characters of an expression visible; round floats to 1 digit."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return escape_invisible(value)
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


@pass_context  # otherwise the label would be translated once, when the template is compiled
def _translated(_: Context, text: str) -> str:
    return translator()(text)


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
        what, where = _halves(one_line(clip(verdict.root.message, MAX_MESSAGE)))
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
            "where": "there is not enough evidence; see 'How sure' below",
        }
    limits = " in the available evidence" if verdict.unseen else ""
    return {"symbol": "✓", "tone": "fine", "what": f"nothing failed{limits}", "where": ""}


def _halves(sentence: str) -> tuple[str, str]:
    """Split a sentence at its first dash, colon or semicolon: headline and second line."""
    broken = re.split(r" — |: |; ", sentence, maxsplit=1)
    return broken[0], broken[1] if len(broken) > 1 else ""


def _paragraph(
    verdict: Verdict, where: str, chart: IncidentChart, run: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the sentences below the headline: where, the effect on other ranks, and the action."""
    effects = [
        clip(fold.sentence, MAX_EFFECT)
        for fold in fold_findings(verdict.consequences)[:MAX_EFFECTS]
    ]
    action = f"action: {run['decision']}" if run.get("decision") else ""
    quiet = f"the job made {chart.silence_text}" if chart.silence_s >= NOTABLE_SILENCE_S else ""
    parts = [where, *effects, quiet, action] if verdict.root else [where]
    return tuple(sentence(part, MAX_SENTENCE) for part in parts if part)


def _explanation(verdict: Verdict) -> str:
    """Return the summary of the cause, if the chosen language is another than the headline's."""
    return translated_summary(verdict.root.cause, translator()) if verdict.root else ""


def _named(verdict: Verdict) -> set[int]:
    return {claim.subject.rank for claim in verdict.suspects if claim.subject.rank is not None}


def _whole_message(verdict: Verdict) -> str:
    """Return the message of the root if the headline and the paragraph do not show all of it."""
    message = verdict.root.message if verdict.root is not None else ""
    is_cut = len(message) > MAX_HEADLINE or "\n" in message.strip()
    return clip(message, MAX_MESSAGE) if is_cut else ""


def _summary(
    verdict: Verdict,
    head: Mapping[str, str],
    when: Sequence[str],
    source: Sequence[SourceWindow],
) -> str:
    headline = verdict.root.message if verdict.root is not None else head["what"]
    return verdict_summary(
        verdict, f"{head['symbol']} {headline}", when=", ".join(filter(None, when)), source=source
    )


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


def _distinct(facts: Sequence[Fact]) -> list[tuple[Fact, int]]:
    """Return the first fact of each text, and how many more have the same text."""
    counts = Counter(fact.text for fact in facts)
    first = {fact.text: fact for fact in reversed(facts)}
    return [(first[text], count - 1) for text, count in counts.items()]


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


def _moment(time: float | None) -> str:
    return _clock(time, "%Y-%m-%d %H:%M:%S UTC")


def _hosts(hosts: Sequence[str]) -> str:
    return ", ".join(clip(host, 100) for host in hosts[:3]) + (
        f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    )


def _clock(time: float | None, form: str = "%H:%M:%S.%f") -> str:
    """Format a Unix time as UTC with milliseconds; empty if it is missing or out of range."""
    if time is None or not math.isfinite(time):
        return ""
    try:
        text = datetime.fromtimestamp(time, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""
    return text[:-3] if form.endswith("%f") else text
